"""A linear layer in training, where nothing larger is fused around it.

The gradient of its bias has a kernel of its own; the forward product may be in fp8. Shapes: D in, M out, R rows.
"""

from typing import Any

import torch
from torch import Tensor, nn

from vitkit.kernels.dispatch import TRITON, forbid_double_backward, triton_applies
from vitkit.kernels.forward import linear
from vitkit.torch_private import has_hooks

if TRITON:
    from vitkit.kernels.sums_triton import partial_row_sums


def apply_linear(layer: nn.Linear, x: Tensor, *, gamma: Tensor | None = None, fp8: bool = False) -> Tensor:
    """(…, D) → (…, M), times LayerScale's gamma (M,). A layer that is not plain, or has hooks, is called as it is."""
    if triton_applies(x) and is_plain_linear(layer):
        return fused_linear(x, *scaled_weights(layer, gamma), fp8=fp8)
    out: Tensor = layer(x)
    return out if gamma is None else out * gamma


def scaled_weights(layer: nn.Linear, gamma: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a layer times LayerScale's gamma: far fewer numbers than the layer's output has."""
    if gamma is None:
        return layer.weight, layer.bias
    return layer.weight * gamma[:, None], layer.bias * gamma


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor, *, fp8: bool = False) -> Tensor:
    """Apply a weight (M, D) and a bias where `triton_applies`; the backward pass is in the dtype of the input."""
    out: Tensor = _FusedLinear.apply(x, weight, bias, fp8)
    return out


def sum_rows(rows: Tensor) -> Tensor:
    """Sum over rows: (R, M) → (M,)."""
    if torch.compiler.is_compiling():  # which fuses it into the kernel before it
        return rows.sum(dim=0)
    return partial_row_sums(rows.contiguous()).sum(dim=0).to(rows.dtype)


def is_plain_linear(layer: nn.Module, kinds: tuple[type[nn.Linear], ...] = (nn.Linear,)) -> bool:
    """Return whether weight and bias are all there is to a layer: no other subclass, no adapter, no hook."""
    return type(layer) in kinds and not has_hooks(layer)


class _FusedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, fp8: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias, fp8)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        forbid_double_backward("linear layer")
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)  # (R, M)
        needed = ctx.needs_input_grad
        return (
            (rows @ weight).view_as(x) if needed[0] else None,
            rows.t() @ x.flatten(0, -2) if needed[1] else None,
            sum_rows(rows) if needed[2] else None,
            None,
        )
