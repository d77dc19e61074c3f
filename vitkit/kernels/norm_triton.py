"""Residual sum, LayerNorm and fp8 quantisation between two matrix products of a forward pass, in one kernel each.

Shapes: R rows, D width, M width of an MLP.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import launcher, operator
from vitkit.kernels.gelu_triton import gelu_ratio_and_derivative

FP8 = torch.float8_e4m3fn  # at most 448
NORM_TILES = {"ROWS": 4, "num_warps": 4}
QUANTIZE_TILES = {"ROWS": 1, "num_warps": 4}


@triton.jit
def _store_fp8(out, scales, rows, offsets, mask, values, R):
    """Store each row divided by its scale, which maps its largest number to the largest fp8 number."""
    scale = tl.maximum(tl.max(tl.abs(values), axis=1) / 448.0, 1e-12)
    tl.store(out + offsets, (values * (1 / scale)[:, None]).to(out.dtype.element_ty), mask=mask)
    tl.store(scales + rows, scale, mask=rows < R)


@triton.jit
def norm_kernel(
    stream,
    branch,
    shift,
    weight,
    bias,
    total,
    out,
    scales,
    R,
    D,
    eps,
    ADD: tl.constexpr,
    SHIFT: tl.constexpr,
    QUANTIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = columns < D
    mask = (rows[:, None] < R) & inside[None, :]
    offsets = rows[:, None].to(tl.int64) * D + columns[None, :]
    x = tl.load(stream + offsets, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        total_rounded = (x + tl.load(branch + offsets, mask=mask, other=0.0).to(tl.float32)).to(total.dtype.element_ty)
        tl.store(total + offsets, total_rounded, mask=mask)
        x = total_rounded.to(tl.float32)
    if SHIFT:
        x += tl.load(shift + columns, mask=inside, other=0.0)[None, :]
    mean = tl.sum(x, axis=1) / D
    centred = tl.where(mask, x - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=1) / D + eps)
    scale_row = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    normed = centred * rstd[:, None] * scale_row[None, :] + offset[None, :]
    if QUANTIZE:
        _store_fp8(out, scales, rows, offsets, mask, normed, R)
    else:
        tl.store(out + offsets, normed.to(out.dtype.element_ty), mask=mask)


@triton.jit
def quantize_kernel(before, out, scales, R, M, GELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    mask = (rows[:, None] < R) & (columns[None, :] < M)
    offsets = rows[:, None].to(tl.int64) * M + columns[None, :]
    x = tl.load(before + offsets, mask=mask, other=0.0).to(tl.float32)
    if GELU != "none":
        ratio, _ = gelu_ratio_and_derivative(x, GELU)
        x *= ratio
    _store_fp8(out, scales, rows, offsets, mask, x, R)


def shifted_layer_norm(stream: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    out = torch.empty_like(stream)
    _norm(stream, None, shift, weight, bias, eps, stream, out, None)
    return out


def add_layer_norm_fp8(
    stream: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    total = stream if branch is None else torch.empty_like(stream)
    out, scales = torch.empty_like(stream, dtype=FP8), _scales(stream)
    _norm(stream, branch, None, weight, bias, eps, total, out, scales)
    return total, out, scales


@operator
def quantize_rows(before: Tensor, gelu: str, launch: Any = launcher) -> tuple[Tensor, Tensor]:
    """(R, M), after that kind of GELU, or "none" → fp8, and a scale for each row (R, 1)."""
    rows, width = before.shape
    out, scales = torch.empty_like(before, dtype=FP8), _scales(before)
    launch(quantize_kernel)[(triton.cdiv(rows, QUANTIZE_TILES["ROWS"]),)](
        before, out, scales, rows, width, GELU=gelu, COLUMNS=triton.next_power_of_2(width), **QUANTIZE_TILES
    )
    return out, scales


def _scales(rows: Tensor) -> Tensor:
    return rows.new_empty(len(rows), 1, dtype=torch.float32)


def _norm(
    stream: Tensor,
    branch: Tensor | None,
    shift: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    total: Tensor,
    out: Tensor,
    scales: Tensor | None,
) -> None:
    rows, width = stream.shape
    branch_or_any, shift_or_any = stream if branch is None else branch, stream if shift is None else shift
    tensors = (stream, branch_or_any, shift_or_any, weight, bias, total, out, out if scales is None else scales)
    flags = {"ADD": branch is not None, "SHIFT": shift is not None, "QUANTIZE": scales is not None}
    launcher(norm_kernel)[(triton.cdiv(rows, NORM_TILES["ROWS"]),)](
        *tensors, rows, width, eps, **flags, COLUMNS=triton.next_power_of_2(width), **NORM_TILES
    )
