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
        return functional_call(self.objective, _rounded(chain(self.objective.named_parameters(), tables)),
                               (pixels, targets))


def _rounded(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    found = dict(tensors)
    wide = [name for name, tensor in found.items() if tensor.is_floating_point()]
    one_by_one = torch.compiler.is_compiling() or dist.is_initialized() or not found[wide[0]].is_cuda
    if one_by_one:  # a compiler sees to it itself; DDP sends gradients on as they come, so they are not to come at once
        return found | {name: found[name].bfloat16() for name in wide}
    return found | dict(zip(wide, _Round.apply(*(found[name] for name in wide)), strict=True))


class _Round(torch.autograd.Function):
    """All weights in one launch, and their gradients in another: with a small model, launches are what takes time."""

    @staticmethod
    def forward(ctx: Any, *wide: Tensor) -> tuple[Tensor, ...]:
        return _copied(wide, torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        there = [grad for grad in grads if grad is not None]
        widened = iter(_copied(there, torch.float32))
        return tuple(None if grad is None else next(widened) for grad in grads)


def _copied(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)
