"""Computing in bf16: weights live in float32, are rounded on the way into a pass, and their gradients come back as wide
as they are, or narrow to an optimizer that takes them so.

Everything between, the residual stream too, is bf16: half the bytes of autocast, which keeps LayerNorm and the stream
in float32. Moments, averages and checkpoints know nothing of it. FSDP does the same by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vitkit.kernels.dispatch import INTERPRETED
from vitkit.train.objectives.labels import Measured, Objective


class Narrow(nn.Module):
    """An objective whose model computes in bf16; losses and colours stay as precise as they are."""

    def __init__(self, objective: Objective, *, one_by_one: bool = False):
        super().__init__()
        self.inside = _Swapped(objective)
        self.one_by_one = one_by_one  # for DDP, which sends gradients on as they come: they are not to come at once
        self.learning, self.still = Copies(), Copies()

    def compile(self, *given: Any, **options: Any) -> None:
        """All but rounding the weights, which is one launch for all of them out here, and one for each inside."""
        self.inside.compile(*given, **options)

    def forward(self, pixels: Tensor, targets: Tensor) -> Measured:
        wide = self.inside.wide()
        at_once = (pixels.is_cuda or INTERPRETED) and not self.one_by_one and not torch.compiler.is_compiling()
        return self.inside(
            self.rounded(wide) if at_once else {name: one.bfloat16() for name, one in wide.items()}, pixels, targets
        )

    def rounded(self, wide: dict[str, Tensor]) -> dict[str, Tensor]:
        """In bf16, all at once."""
        learning = [name for name, tensor in wide.items() if tensor.requires_grad]
        still = [name for name, tensor in wide.items() if not tensor.requires_grad]  # frozen: nothing goes back to them
        found = dict(zip(still, self.still([wide[name] for name in still]), strict=True))
        return found | dict(zip(learning, _Round.apply(self.learning, *(wide[name] for name in learning)), strict=True))


class _Swapped(nn.Module):
    """An objective with other numbers in the place of its own."""

    def __init__(self, objective: Objective):
        super().__init__()
        self.objective = objective
        self.slots = {
            f"{path}.{name}".lstrip("."): (held, name)
            for path, module in objective.named_modules()
            for held in (module._parameters, module._buffers if path.startswith("model") else {})
            for name in held
        }  # where each of them is: looking for all of them again takes a tenth of a step

    def wide(self) -> dict[str, Tensor]:
        """Weights, and the model's tables, by name."""
        found = {name: held[key] for name, (held, key) in self.slots.items()}
        return {name: tensor for name, tensor in found.items() if tensor is not None and tensor.is_floating_point()}

    def forward(self, numbers: dict[str, Tensor], pixels: Tensor, targets: Tensor) -> Measured:
        if torch.compiler.is_compiling():
            return functional_call(self.objective, numbers, (pixels, targets))
        own = self.wide()
        try:
            self._put(numbers)
            measured: Measured = self.objective(pixels, targets)
            return measured
        finally:
            self._put(own)

    def _put(self, numbers: dict[str, Tensor]) -> None:
        for name, tensor in numbers.items():
            held, key = self.slots[name]
            held[key] = tensor


class Copies:
    """Weights in bf16: made for every pass, or kept, for an optimizer that moves them along with the weights. Kept ones
    are made again where anybody else has changed a weight, which torch counts."""

    def __init__(self) -> None:
        self.kept = False
        self.weights: list[Tensor] = []
        self.narrow: dict[int, Tensor] = {}  # by the weight's id
        self.versions: dict[int, int] = {}  # of the weight that a copy is of

    def __call__(self, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if not self.kept:
            return _copied(weights, [torch.bfloat16] * len(weights))
        if [id(weight) for weight in weights] != list(self.narrow):
            self.weights, self.versions = list(weights), {}  # held, so that an id stays theirs
            self.narrow = {id(weight): torch.empty_like(weight, dtype=torch.bfloat16) for weight in weights}
        self.renew()
        return tuple(copy.detach() for copy in self.narrow.values())

    def renew(self) -> None:
        """Kept ones, in place."""
        changed = [weight for weight in self.weights if self.versions.get(id(weight)) != weight._version]
        if changed:
            with torch.no_grad():
                torch._foreach_copy_(self.of(changed), changed)
            self._count(changed)

    def of(self, weights: Sequence[Tensor]) -> list[Tensor]:
        return [self.narrow[id(weight)] for weight in weights]

    def moved(self, weights: Sequence[Tensor]) -> None:
        """These weights and their copies, by somebody whom torch did not see."""
        same = [weight for weight in weights if self.versions[id(weight)] == weight._version]
        torch.autograd.graph.increment_version([*weights, *self.of(weights)])
        self._count(same)

    def _count(self, weights: Sequence[Tensor]) -> None:
        self.versions |= {id(weight): weight._version for weight in weights}


class _Round(torch.autograd.Function):
    """All weights in one launch, and their gradients in another: with a small model, launches are what takes time."""

    @staticmethod
    def forward(ctx: Any, copies: Copies, *wide: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.wanted = [weight.grad_dtype or weight.dtype for weight in wide]
        return copies(wide)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        others = {
            number: grad for number, grad in enumerate(grads) if grad is not None and grad.dtype != ctx.wanted[number]
        }
        converted = dict(
            zip(others, _copied(list(others.values()), [ctx.wanted[number] for number in others]), strict=True)
        )
        return None, *(converted.get(number, grad) for number, grad in enumerate(grads))


def _copied(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    if copies:
        with torch.no_grad():
            torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)
