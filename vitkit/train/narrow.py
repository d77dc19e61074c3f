"""Computing in bf16: weights live in float32, are rounded on the way into a pass, and their gradients come back in
float32.

Everything between, the residual stream too, is bf16: half the bytes of autocast, which keeps LayerNorm and the stream
in float32. The optimizer, its moments, averages and checkpoints know nothing of it. FSDP does the same by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from vitkit.train.objectives import Measured, Objective


class Narrow(nn.Module):
    """An objective whose model computes in bf16; losses and colours stay as precise as they are."""

    def __init__(self, objective: Objective):
        super().__init__()
        self.objective = objective

    def forward(self, pixels: Tensor, targets: Tensor) -> Measured:
        tables = ((f"model.{name}", buffer) for name, buffer in self.objective.model.named_buffers())
        # a compiler sees to it itself; DDP sends gradients on as they come, so they are not to come at once
        at_once = pixels.is_cuda and not torch.compiler.is_compiling() and not dist.is_initialized()
        numbers = rounded(chain(self.objective.named_parameters(), tables), at_once=at_once)
        return functional_call(self.objective, numbers, (pixels, targets))


def rounded(tensors: Iterable[tuple[str, Tensor]], *, at_once: bool) -> dict[str, Tensor]:
    """Floats in bf16, others as they are; gradients go back in the numbers they are of."""
    found = dict(tensors)
    wide = [name for name, tensor in found.items() if tensor.is_floating_point()]
    if not at_once:
        return found | {name: found[name].bfloat16() for name in wide}
    learning = [name for name in wide if found[name].requires_grad]
    still = [name for name in wide if not found[name].requires_grad]  # frozen: nothing goes back to them
    with torch.no_grad():
        found |= dict(zip(still, _copied([found[name] for name in still], torch.bfloat16), strict=True))
    return found | dict(zip(learning, _Round.apply(*(found[name] for name in learning)), strict=True))


class _Round(torch.autograd.Function):
    """All weights in one launch, and their gradients in another: with a small model, launches are what takes time."""

    @staticmethod
    def forward(ctx: Any, *wide: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return _copied(wide, torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        there = [grad for grad in grads if grad is not None]
        widened = iter(_copied(there, torch.float32))
        return tuple(None if grad is None else next(widened) for grad in grads)


def _copied(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)
