"""Mixed precision: fp32 master weights, a bf16 copy of them for forward and backward.

Gradients are cast to fp32, or stay bf16 for an optimizer that takes them so (fused_adamw.py). Activations, the residual
stream too, are bf16: half the bytes of autocast, which keeps LayerNorm and the stream in fp32. Optimizer state, EMA and
checkpoints are fp32. FSDP has a mixed-precision policy of its own. fp8 is for forward products only, with a scale for
each row; backward and everything else stay as they are.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vitkit.compute.fused_vit import fp8_widths_fit
from vitkit.compute.inference import supported_precisions
from vitkit.devices import TrainPrecision
from vitkit.errors import ConfigError
from vitkit.kernels.dispatch import INTERPRETED, TRITON
from vitkit.kernels.fuse import FusedAttention, FusedMlp, FusedSwiGlu
from vitkit.model.batch_norm import running_statistics
from vitkit.model.build import Model, transformer_of
from vitkit.torch_private import foreach_copy_, read_slots, swapped, tensor_slots, version_of
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
        parameters = dict(objective.named_parameters())
        slots = tensor_slots(objective)
        statistics = running_statistics(objective).keys()  # updated in the forward pass, which a copy would lose
        self.slots = {
            name: slot
            for name, slot in slots.items()
            if name in parameters or (name.startswith("model.") and name not in statistics)
        }

    def master_weights(self) -> dict[str, Tensor]:
        """Return the objective's weights and the model's floating-point buffers by name."""
        return read_slots(self.slots)

    def forward(self, weights: dict[str, Tensor], pixels: Tensor, targets: Tensor) -> LossAndMetrics:
        if torch.compiler.is_compiling():
            return functional_call(self.objective, weights, (pixels, targets))
        with swapped(self.slots, weights):
            output: LossAndMetrics = self.objective(pixels, targets)
        return output


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
        changed = [weight for weight in self.weights if self.versions.get(id(weight)) != version_of(weight)]
        if changed:
            with torch.no_grad():
                foreach_copy_(self.of(changed), changed)
            self._record_versions(changed)

    def of(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [self.copies[id(weight)] for weight in weights]

    def mark_updated(self, weights: Sequence[Tensor]) -> None:
        """Record that a kernel has updated these weights and their copies, which torch's counter does not see."""
        unchanged = [weight for weight in weights if self.versions[id(weight)] == version_of(weight)]
        torch.autograd.graph.increment_version([*weights, *self.of(weights)])
        self._record_versions(unchanged)

    def _record_versions(self, weights: Sequence[Tensor]) -> None:
        self.versions |= {id(weight): version_of(weight) for weight in weights}


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
            foreach_copy_(copies, tensors)
    return tuple(copies)


def use_fp8(model: Model, device: torch.device, precision: TrainPrecision) -> None:
    """Switch fp8 on for the forward products of qkv and MLP; raise where device or model does not support it."""
    if "fp8" not in supported_precisions(device) or not TRITON:
        reason = (
            "Triton is not installed" if "fp8" in supported_precisions(device) else f"{device} does not support fp8"
        )
        raise ConfigError(f"fp8 = true needs 8-bit floats and Triton: {reason}", try_="fp8 = false")
    if precision != "bf16":
        raise ConfigError("fp8 = true needs precision = bf16, but precision is fp32", try_="--precision bf16")
    vit = transformer_of(model)
    if vit is not None and not fp8_widths_fit(vit):
        raise ConfigError(
            "fp8 = true needs widths that are multiples of 16; this model's are "
            f"{vit.config.width} and {vit.config.mlp}",
            try_="fp8 = false",
        )
    modules = [module for module in model.modules() if isinstance(module, FusedAttention | FusedMlp | FusedSwiGlu)]
    if not modules:
        raise ConfigError(
            "fp8 = true is for Transformers; this model has no block that can be fused", try_="fp8 = false"
        )
    for module in modules:
        module.fp8 = True
