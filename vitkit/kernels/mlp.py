"""The MLP of a block with a fused backward: two products with GELU or SwiGLU between, whose output is not stored.

It is as large as four residual streams, and recomputed in the backward kernel that reads the activation's input anyway;
the same kernel sums the gradient of the first bias. This saves a quarter of a model's activations for an eightieth of a
step's time.

Shapes: D width, M hidden width, R rows.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels.dispatch import TRITON, forbid_double_backward, operator_or_function
from vitkit.kernels.forward import Activation, activate, activate_fp8, linear, linear_fp8, quantize_rows
from vitkit.kernels.linear import sum_rows

if TRITON:
    from vitkit.kernels.gelu_triton import gelu_backward
    from vitkit.kernels.swiglu_triton import swiglu_backward


def fused_mlp(
    x: Tensor,
    up: Tensor,
    up_bias: Tensor,
    down: Tensor,
    down_bias: Tensor,
    *,
    activation: Activation,
    fp8: bool = False,
) -> Tensor:
    """(…, D) → (…, D) through weights (M, D), or (2·M, D) for SwiGLU, and (D, M), where `triton_applies`.

    With fp8, the two forward products are in fp8.
    """
    out: Tensor = _FusedMlp.apply(x, up, up_bias, down, down_bias, activation, fp8)
    return out


class _FusedMlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up: Tensor,
        up_bias: Tensor,
        down: Tensor,
        down_bias: Tensor,
        activation: Activation,
        fp8: bool,
    ) -> Tensor:
        before = linear(x, up, up_bias, fp8)
        ctx.save_for_backward(x, up, down, before)
        ctx.activation = activation
        if not fp8:
            return F.linear(activate(before, activation), down, down_bias)
        hidden = activate_fp8(before.flatten(0, -2), activation)
        return linear_fp8(hidden, quantize_rows(down), down_bias).view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        forbid_double_backward("MLP")
        x, up, down, before = ctx.saved_tensors
        grad_out = grad.flatten(0, -2)  # (R, D)
        # (R, D) x (D, M) with D the shorter: cuBLAS is a tenth faster if both are read along D
        grad_after = F.linear(grad_out, down.t().contiguous())
        grad_before, after, sums = _activation_backward(grad_after, before.flatten(0, -2), ctx.activation)
        return (
            (grad_before @ up).view_as(x),
            grad_before.t() @ x.flatten(0, -2),
            sums.sum(dim=0).to(up.dtype),
            grad_out.t() @ after,
            sum_rows(grad_out),
            None,
            None,
        )


def _activation_backward(grad: Tensor, before: Tensor, activation: Activation) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient before the activation, its recomputed output, and partial sums of the gradient over rows."""
    found: tuple[Tensor, Tensor, Tensor]
    if activation == "swiglu":
        found = operator_or_function(swiglu_backward)(grad, before)
    else:
        found = operator_or_function(gelu_backward)(grad, before, activation)
    return found
