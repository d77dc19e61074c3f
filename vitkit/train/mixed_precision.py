"""Mixed precision: fp32 master weights, a bf16 copy of them for forward and backward.

Gradients are cast to fp32, or stay bf16 for an optimizer that takes them so (fused_adamw.py). Activations, the residual
stream too, are bf16: half the bytes of autocast, which keeps LayerNorm and the stream in fp32. Optimizer state, EMA and
checkpoints are fp32. FSDP has a mixed-precision policy of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vitkit.kernels.dispatch import INTERPRETED
from vitkit.train.objectives.base import LossAndMetrics, Objective


class MixedPrecision(nn.Module):
    """An objective whose model computes in bf16; the loss and the pixels keep their precision."""

    def __init__(self, objective: Objective, *, per_tensor: bool = False):
        super().__init__()
        self.swapped = _SwappedWeights(objective)
        self.per_tensor = per_tensor  # for DDP, whose all-reduce overlaps with backward
        self.trainable, self.frozen = Bf16Copies(), Bf16Copies()

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile all but the cast of the weights: one launch for all in eager mode, one for each if compiled."""
        self.swapped.compile(*arguments, **options)

    def forward(self, pixels: Tensor, targets: Tensor) -> LossAndMetrics:
        masters = self.swapped.master_weights()
        together = (pixels.is_cuda or INTERPRETED) and not self.per_tensor and not torch.compiler.is_compiling()
        weights = self.cast_weights(masters) if together else {name: one.bfloat16() for name, one in masters.items()}
        return self.swapped(weights, pixels, targets)

    def cast_weights(self, masters: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return all weights in bf16, cast together."""
        trainable = {name: tensor for name, tensor in masters.items() if tensor.requires_grad}
        frozen = {name: tensor for name, tensor in masters.items() if not tensor.requires_grad}  # have no backward
        copies = dict(zip(frozen, self.frozen([*frozen.values()]), strict=True))
        return copies | dict(zip(trainable, _CastToBf16.apply(self.trainable, *trainable.values()), strict=True))


class _SwappedWeights(nn.Module):
    """An objective that is called with other weights in place of its own."""

    def __init__(self, objective: Objective):
        super().__init__()
        self.objective = objective
        self.slots = {
            f"{path}.{name}".lstrip("."): (held, name)
            for path, module in objective.named_modules()
            for held in (module._parameters, module._buffers if path.startswith("model") else {})
            for name in held
        }  # where each tensor is stored: walking the modules in every step takes a tenth of it

    def master_weights(self) -> dict[str, Tensor]:
        """Return the objective's weights and the model's floating-point buffers by name."""
        tensors = {name: held[key] for name, (held, key) in self.slots.items()}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None and tensor.is_floating_point()}

    def forward(self, weights: dict[str, Tensor], pixels: Tensor, targets: Tensor) -> LossAndMetrics:
        if torch.compiler.is_compiling():
            return functional_call(self.objective, weights, (pixels, targets))
        own = self.master_weights()
        try:
            self._assign(weights)
            output: LossAndMetrics = self.objective(pixels, targets)
            return output
        finally:
            self._assign(own)

    def _assign(self, weights: dict[str, Tensor]) -> None:
        for name, tensor in weights.items():
            held, key = self.slots[name]
            held[key] = tensor


class Bf16Copies:
    """The bf16 copies of fp32 master weights.

    They are made in every forward pass, or persistent, for an optimizer that updates them with the weights. A
    persistent copy is refreshed where anything else has changed its weight, which torch's version counter shows.
    """

    def __init__(self) -> None:
        self.persistent = False
        self.weights: list[Tensor] = []
        self.copies: dict[int, Tensor] = {}  # by the id of the weight
        self.versions: dict[int, int] = {}  # of the weight when it was copied

    def __call__(self, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if not self.persistent:
            return _cast(weights, [torch.bfloat16] * len(weights))
        if [id(weight) for weight in weights] != list(self.copies):
            self.weights, self.versions = list(weights), {}  # referenced, so that their ids stay valid
            self.copies = {id(weight): torch.empty_like(weight, dtype=torch.bfloat16) for weight in weights}
        self.refresh()
        return tuple(copy.detach() for copy in self.copies.values())

    def refresh(self) -> None:
        """Update persistent copies of changed weights, in place."""
        changed = [weight for weight in self.weights if self.versions.get(id(weight)) != weight._version]
        if changed:
            with torch.no_grad():
                torch._foreach_copy_(self.of(changed), changed)
            self._record_versions(changed)

    def of(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [self.copies[id(weight)] for weight in weights]

    def mark_updated(self, weights: Sequence[Tensor]) -> None:
        """Record that a kernel has updated these weights and their copies, which torch's counter does not see."""
        unchanged = [weight for weight in weights if self.versions[id(weight)] == weight._version]
        torch.autograd.graph.increment_version([*weights, *self.of(weights)])
        self._record_versions(unchanged)

    def _record_versions(self, weights: Sequence[Tensor]) -> None:
        self.versions |= {id(weight): weight._version for weight in weights}


class _CastToBf16(torch.autograd.Function):
    """Cast all weights in one launch and their gradients in another: launches dominate the time of a small model."""

    @staticmethod
    def forward(ctx: Any, copies: Bf16Copies, *masters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.grad_dtypes = [weight.grad_dtype or weight.dtype for weight in masters]
        return copies(masters)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        others = {
            index: grad for index, grad in enumerate(grads) if grad is not None and grad.dtype != ctx.grad_dtypes[index]
        }
        dtypes = [ctx.grad_dtypes[index] for index in others]
        converted = dict(zip(others, _cast(list(others.values()), dtypes), strict=True))
        return None, *(converted.get(index, grad) for index, grad in enumerate(grads))


def _cast(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    if copies:
        with torch.no_grad():
            torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)
