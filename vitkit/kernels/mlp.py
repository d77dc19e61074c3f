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

from vitkit.kernels.dispatch import TRITON, check_single, either
from vitkit.kernels.forward import gelu_rounded, product, round_rows, rounded_product
from vitkit.kernels.linear import summed

if TRITON:
    from vitkit.kernels.gelu_triton import gelu, gelu_backward, gelu_backward_operator, gelu_operator


def mlp(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, *, tanh: bool, fp8: bool = False
) -> Tensor:
    """(…, D) → (…, D) through weights (M, D) and (D, M); with fp8, its two products are of 8-bit numbers. The way back
    is in the numbers given either way."""
    out: Tensor = _Mlp.apply(x, up, up_bias, down, down_bias, tanh, fp8)
    return out


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, tanh: bool, fp8: bool
    ) -> Tensor:
        before = product(x, up, up_bias, fp8)
        ctx.save_for_backward(x, up, down, before)
        ctx.tanh = tanh
        if not fp8:
            return F.linear(either(gelu_operator, gelu)(before, tanh), down, down_bias)
        hidden = gelu_rounded(before.flatten(0, -2), tanh=tanh)
        return rounded_product(hidden, round_rows(down), down_bias).view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        check_single("MLP")
        x, up, down, before = ctx.saved_tensors
        above = grad.flatten(0, -2)  # (R, D)
        run = either(gelu_backward_operator, gelu_backward)
        # (R, D) x (D, M) with D the shorter: cuBLAS is a tenth faster if both are read along D
        found, after, sums = run(F.linear(above, down.t().contiguous()), before.flatten(0, -2), ctx.tanh)
        return (
            (found @ up).view_as(x),
            found.t() @ x.flatten(0, -2),
            sums.sum(dim=0).to(up.dtype),
            above.t() @ after,
            summed(above),
            None,
            None,
        )
