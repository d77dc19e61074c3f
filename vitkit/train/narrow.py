"""Computing in bf16: weights live in float32, are rounded on the way into a pass, and their gradients come back in
float32.

Everything between, the residual stream too, is bf16: half the bytes of autocast, which keeps LayerNorm and the stream
in float32. The optimizer, its moments, averages and checkpoints know nothing of it. FSDP does the same by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from vitkit.kernels.here import INTERPRETED
from vitkit.train.objectives import Measured, Objective


class Narrow(nn.Module):
    """An objective whose model computes in bf16; losses and colours stay as precise as they are."""

    def __init__(self, objective: Objective):
        super().__init__()
        self.inside = _Swapped(objective)
        self.learning, self.still = Copies(), Copies()

    def compile(self, *given: Any, **options: Any) -> None:
        """All but rounding the weights, which is one launch for all of them out here, and one for each inside."""
        self.inside.compile(*given, **options)

    def forward(self, pixels: Tensor, targets: Tensor) -> Measured:
        objective = self.inside.objective
        tables = ((f"model.{name}", buffer) for name, buffer in objective.model.named_buffers())
        wide = {name: tensor for name, tensor in chain(objective.named_parameters(), tables)
                if tensor.is_floating_point()}
        # DDP sends gradients on as they come: they are not to come at once, unless compiled code gives them so anyway
        waits = not dist.is_initialized() or self.inside._compiled_call_impl is not None
        at_once = (pixels.is_cuda or INTERPRETED) and waits and not torch.compiler.is_compiling()
        return self.inside(self.rounded(wide) if at_once else {name: one.bfloat16() for name, one in wide.items()},
                           pixels, targets)

    def rounded(self, wide: dict[str, Tensor]) -> dict[str, Tensor]:
        """In bf16, all at once; gradients go back in the numbers that those of the weights are to have."""
        learning = [name for name, tensor in wide.items() if tensor.requires_grad]
        still = [name for name, tensor in wide.items() if not tensor.requires_grad]  # frozen: nothing goes back to them
        found = dict(zip(still, self.still([wide[name] for name in still]), strict=True))
        return found | dict(zip(learning, _Round.apply(self.learning, *(wide[name] for name in learning)),
                                strict=True))


class _Swapped(nn.Module):
    """An objective with other numbers in the place of its own."""

    def __init__(self, objective: Objective):
        super().__init__()
        self.objective = objective

    def forward(self, numbers: dict[str, Tensor], pixels: Tensor, targets: Tensor) -> Measured:
        return functional_call(self.objective, numbers, (pixels, targets))


class Copies:
    """Tensors in bf16: made again for every pass, or only when somebody changed the tensors behind the back of an
    optimizer that moves their copies along."""

    def __init__(self) -> None:
        self.moved_along = False
        self.of: list[Tensor] = []
        self.narrow: list[Tensor] = []
        self.versions: list[int] = []

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if len(tensors) != len(self.of) or any(one is not other for one, other in zip(tensors, self.of, strict=True)):
            self.of, self.versions = list(tensors), []
            self.narrow = [torch.empty_like(tensor, dtype=torch.bfloat16) for tensor in tensors]
        versions = [tensor._version for tensor in tensors]
        if tensors and not (self.moved_along and versions == self.versions):
            with torch.no_grad():
                torch._foreach_copy_(self.narrow, self.of)
            self.versions = versions
        return tuple(copy.detach() for copy in self.narrow)


class _Round(torch.autograd.Function):
    """All weights in one launch, and their gradients in another: with a small model, launches are what takes time."""

    @staticmethod
    def forward(ctx: Any, copies: Copies, *wide: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.taken = [_taken(tensor) for tensor in wide]
        return copies(wide)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        narrow = {number: grad for number, grad in enumerate(grads)
                  if grad is not None and grad.dtype != ctx.taken[number]}
        wide = {number: torch.empty_like(grad, dtype=ctx.taken[number]) for number, grad in narrow.items()}
        if wide:
            torch._foreach_copy_(list(wide.values()), list(narrow.values()))
        return None, *(wide.get(number, grad) for number, grad in enumerate(grads))


def _taken(weight: Tensor) -> torch.dtype:
    """The numbers that a weight's gradient has: its own, unless something else was asked for."""
    return getattr(weight, "grad_dtype", None) or weight.dtype
