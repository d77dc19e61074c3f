"""Steps of a forward pass that no gradient goes through: each is one pass over memory on a GPU, and has its plain twin
here, which computes the same anywhere.

Shapes: R rows, D width, M hidden width. 8-bit rows are float8 e4m3 with a scale each, (R, 1).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels.dispatch import TRITON, either, fusable

if TRITON:
    from vitkit.kernels import gelu_triton, norm_triton

LARGEST = 448.0  # of 8-bit floats
Rounded = tuple[Tensor, Tensor]  # (R, D) in 8 bits, (R, 1) scales


def norm(stream: Tensor, shift: Tensor, layer: torch.nn.LayerNorm) -> Tensor:
    """LayerNorm of stream + shift, (R, D) + (D,)."""
    if fusable(stream):
        return norm_triton.norm(stream, shift, layer.weight, layer.bias, layer.eps)
    return _normed(stream + shift, layer).to(stream.dtype)


def up(rows: Tensor, weight: Tensor, bias: Tensor, *, tanh: bool) -> Tensor:
    """GELU of a product: (R, D), (M, D) → (R, M)."""
    if tanh and rows.is_cuda:  # cuBLAS applies it on the way out of the product
        return torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)
    before = torch.addmm(bias, rows, weight.t())
    if fusable(before):
        return either(gelu_triton.gelu_operator, gelu_triton.gelu)(before, tanh)
    return F.gelu(before, approximate="tanh" if tanh else "none")


def norm_rounded(stream: Tensor, branch: Tensor | None, layer: torch.nn.LayerNorm) -> tuple[Tensor, Rounded]:
    """The sum of stream and branch, and its LayerNorm in 8 bits."""
    if fusable(stream):
        total, out, scales = norm_triton.norm_rounded(stream, branch, layer.weight, layer.bias, layer.eps)
        return total, (out, scales)
    total = stream if branch is None else stream + branch
    return total, round_rows(_normed(total, layer))


def gelu_rounded(before: Tensor, *, tanh: bool) -> Rounded:
    if fusable(before):
        return either(norm_triton.rounded_operator, norm_triton.rounded)(before, True, tanh)
    return round_rows(F.gelu(before.float(), approximate="tanh" if tanh else "none"))


def round_rows(rows: Tensor) -> Rounded:
    if fusable(rows):
        return either(norm_triton.rounded_operator, norm_triton.rounded)(rows.contiguous(), False, False)
    scales = rows.float().abs().amax(dim=1, keepdim=True).div(LARGEST).clamp_min(1e-12)
    return (rows / scales).to(torch.float8_e4m3fn), scales


def rounded_product(rows: Rounded, weight: Rounded, bias: Tensor) -> Tensor:
    """(R, D), (M, D) → (R, M) in the bias's numbers."""
    (left, left_scales), (right, right_scales) = rows, weight
    if left.is_cuda:
        return torch._scaled_mm(
            left,
            right.t(),
            scale_a=left_scales,
            scale_b=right_scales.t(),
            bias=bias,
            out_dtype=bias.dtype,
            use_fast_accum=True,
        )
    return ((left.float() * left_scales) @ (right.float() * right_scales).t() + bias).to(bias.dtype)


def product(x: Tensor, weight: Tensor, bias: Tensor, fp8: bool) -> Tensor:
    """(…, D), (M, D) → (…, M): a linear layer, of 8-bit numbers if asked for."""
    if not fp8:
        return F.linear(x, weight, bias)
    return rounded_product(round_rows(x.flatten(0, -2)), round_rows(weight), bias).unflatten(0, x.shape[:-1])


def _normed(x: Tensor, layer: torch.nn.LayerNorm) -> Tensor:
    return F.layer_norm(x.float(), layer.normalized_shape, layer.weight.float(), layer.bias.float(), layer.eps)
