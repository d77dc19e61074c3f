"""A linear layer that multiplies 8-bit numbers on the way forward, where nothing larger is fused around it.

Shapes: D in, M out, R rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitkit.kernels.forward import product
from vitkit.kernels.here import check_single


def rounded_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(…, D), (M, D) → (…, M); the way back is in the numbers given."""
    out: Tensor = _RoundedLinear.apply(x, weight, bias)
    return out


class _RoundedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias, True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        check_single("linear layer")
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)                                                  # (R, M)
        return (rows @ weight).view_as(x), rows.t() @ x.flatten(0, -2), rows.sum(dim=0)
