"""A linear layer in training, where nothing larger is fused around it: the gradient of its bias in a pass of our own,
and, if asked, products of 8-bit numbers on the way forward.

Shapes: D in, M out, R rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitkit.kernels.dispatch import TRITON, check_single, fusable
from vitkit.kernels.forward import product

if TRITON:
    from vitkit.kernels.sums_triton import sums


def through(layer: nn.Linear, x: Tensor, *, fp8: bool = False) -> Tensor:
    """(…, D) → (…, M); the way back is in the numbers given. What somebody has put in a layer's place, or looks at, is
    called as it is."""
    if fusable(x) and plain(layer):
        return fused_linear(x, layer.weight, layer.bias, fp8=fp8)
    out: Tensor = layer(x)
    return out


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor, *, fp8: bool = False) -> Tensor:
    """The same, with weights (M, D) of one's own, for what is `fusable`."""
    out: Tensor = _Linear.apply(x, weight, bias, fp8)
    return out


def summed(rows: Tensor) -> Tensor:
    """(R, M) → (M,)."""
    if torch.compiler.is_compiling():  # which makes it part of the pass before it
        return rows.sum(dim=0)
    return sums(rows.contiguous()).sum(dim=0).to(rows.dtype)


def plain(layer: nn.Module) -> bool:
    """Whether its weight and bias are all there is to it: no other layer stands in its place, though it may have these
    as well, and nobody looks at what goes in or comes out."""
    watched = bool(
        layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    )
    return type(layer) is nn.Linear and not watched


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, fp8: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias, fp8)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        check_single("linear layer")
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)  # (R, M)
        wanted = ctx.needs_input_grad
        return (
            (rows @ weight).view_as(x) if wanted[0] else None,
            rows.t() @ x.flatten(0, -2) if wanted[1] else None,
            summed(rows) if wanted[2] else None,
            None,
        )
