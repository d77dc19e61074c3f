"""Fused operations of a forward pass without gradients: one pass over memory on a GPU, each with its plain twin.

Shapes: R rows, D width, M hidden width. fp8 rows are float8 e4m3 with a scale each, (R, 1).
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels.dispatch import TRITON, operator_or_function, triton_applies
from vitkit.model.mlp import apply_gelu, apply_swiglu
from vitkit.model.options import Gelu
from vitkit.torch_private import addmm_gelu, scaled_mm

if TRITON:
    from vitkit.kernels import gelu_triton, norm_triton, swiglu_triton

Activation = Gelu | Literal["swiglu"]

FP8_MAX = 448.0
Fp8Rows = tuple[Tensor, Tensor]  # (R, D) in fp8, (R, 1) scales


def shifted_layer_norm(stream: Tensor, shift: Tensor, layer: torch.nn.LayerNorm) -> Tensor:
    """Return LayerNorm(stream + shift), (R, D) + (D,)."""
    if triton_applies(stream):
        return norm_triton.shifted_layer_norm(stream, shift, layer.weight, layer.bias, layer.eps)
    return _layer_norm(stream + shift, layer).to(stream.dtype)


def linear_activation(rows: Tensor, weight: Tensor, bias: Tensor, activation: Activation) -> Tensor:
    """Return activation(rows @ weight.T + bias): (R, D), (M, D) → (R, M), or (2·M, D) for SwiGLU's gate and up."""
    if activation == "tanh" and rows.is_cuda:
        return addmm_gelu(bias, rows, weight)
    return activate(torch.addmm(bias, rows, weight.t()), activation)


def activate(before: Tensor, activation: Activation) -> Tensor:
    """(…, M) → the same after GELU, or (…, 2·M) → (…, M) by SwiGLU."""
    if activation == "swiglu":
        if not triton_applies(before):
            return apply_swiglu(before)
        return operator_or_function(swiglu_triton.swiglu)(before)
    if not triton_applies(before):
        return apply_gelu(before, activation)
    return operator_or_function(gelu_triton.gelu)(before, activation)


def add_layer_norm_fp8(stream: Tensor, branch: Tensor | None, layer: torch.nn.LayerNorm) -> tuple[Tensor, Fp8Rows]:
    """Return the sum of stream and branch, and its LayerNorm in fp8."""
    if triton_applies(stream):
        total, out, scales = norm_triton.add_layer_norm_fp8(stream, branch, layer.weight, layer.bias, layer.eps)
        return total, (out, scales)
    total = stream if branch is None else stream + branch
    return total, quantize_rows(_layer_norm(total, layer))


def activate_fp8(before: Tensor, activation: Activation) -> Fp8Rows:
    if activation == "swiglu":
        return quantize_rows(activate(before, activation))
    if triton_applies(before):
        return operator_or_function(norm_triton.quantize_rows)(before, activation)
    return quantize_rows(apply_gelu(before.float(), activation))


def quantize_rows(rows: Tensor) -> Fp8Rows:
    if triton_applies(rows):
        return operator_or_function(norm_triton.quantize_rows)(rows.contiguous(), "none")
    scales = rows.float().abs().amax(dim=1, keepdim=True).div(FP8_MAX).clamp_min(1e-12)
    return (rows / scales).to(torch.float8_e4m3fn), scales


def linear_fp8(rows: Fp8Rows, weight: Fp8Rows, bias: Tensor) -> Tensor:
    """(R, D), (M, D) → (R, M) in the dtype of the bias."""
    (left, left_scales), (right, right_scales) = rows, weight
    if left.is_cuda:
        return scaled_mm(left, left_scales, right, right_scales, bias)
    return ((left.float() * left_scales) @ (right.float() * right_scales).t() + bias).to(bias.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor, fp8: bool) -> Tensor:
    """(…, D), (M, D) → (…, M): a linear layer, in fp8 if asked for."""
    if not fp8:
        return F.linear(x, weight, bias)
    return linear_fp8(quantize_rows(x.flatten(0, -2)), quantize_rows(weight), bias).unflatten(0, x.shape[:-1])


def _layer_norm(x: Tensor, layer: torch.nn.LayerNorm) -> Tensor:
    return F.layer_norm(x.float(), layer.normalized_shape, layer.weight.float(), layer.bias.float(), layer.eps)
