"""The MLP of a block: two products with GELU between, which keeps for the way back only what stands before GELU.

What GELU gave, as large as four residual streams, is computed again on the way back, in the pass that needs its input
anyway; the same pass sums the gradient of the first bias. A quarter of a model's activations is not kept, for an
eightieth of a step's time.

Shapes: D width, M hidden width, R rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels.here import TRITON

if TRITON:
    from vitkit.kernels.gelu_triton import gelu, gelu_backward


def mlp(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, *, tanh: bool) -> Tensor:
    """(…, D) → (…, D) through weights (M, D) and (D, M)."""
    out: Tensor = _Mlp.apply(x, up, up_bias, down, down_bias, tanh)
    return out


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor,
                tanh: bool) -> Tensor:
        before = F.linear(x, up, up_bias)
        ctx.save_for_backward(x, up, down, before)
        ctx.tanh = tanh
        return F.linear(gelu(before, tanh), down, down_bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, up, down, before = ctx.saved_tensors
        above = grad.flatten(0, -2)                                                 # (R, D)
        found, after, sums = gelu_backward(above @ down, before.flatten(0, -2), ctx.tanh)
        return ((found @ up).view_as(x), found.t() @ x.flatten(0, -2), sums.sum(dim=0).to(up.dtype),
                above.t() @ after, above.sum(dim=0), None)
