"""What stands between two matrix products of a forward pass, in one pass over memory each: residual, LayerNorm and, for
8-bit products, rounding with a scale for each row.

Shapes: R rows, D width, M width of an MLP.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import direct
from vitkit.kernels.gelu_triton import gelu_and_slope

EIGHT_BITS = torch.float8_e4m3fn  # up to 448
NORM = {"ROWS": 4, "num_warps": 4}
ROUND = {"ROWS": 1, "num_warps": 4}


@triton.jit
def _store_rounded(out, scales, rows, places, there, values, R):
    """Each row divided by its scale, which takes its largest number to the largest that 8 bits have."""
    scale = tl.maximum(tl.max(tl.abs(values), axis=1) / 448.0, 1e-12)
    tl.store(out + places, (values * (1 / scale)[:, None]).to(out.dtype.element_ty), mask=there)
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
    ADDS: tl.constexpr,
    SHIFTS: tl.constexpr,
    ROUNDS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = columns < D
    there = (rows[:, None] < R) & inside[None, :]
    places = rows[:, None].to(tl.int64) * D + columns[None, :]
    x = tl.load(stream + places, mask=there, other=0.0).to(tl.float32)
    if ADDS:
        rounded = (x + tl.load(branch + places, mask=there, other=0.0).to(tl.float32)).to(total.dtype.element_ty)
        tl.store(total + places, rounded, mask=there)
        x = rounded.to(tl.float32)
    if SHIFTS:
        x += tl.load(shift + columns, mask=inside, other=0.0)[None, :]
    mean = tl.sum(x, axis=1) / D
    centred = tl.where(there, x - mean[:, None], 0.0)
    spread = tl.rsqrt(tl.sum(centred * centred, axis=1) / D + eps)
    slope = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    normed = centred * spread[:, None] * slope[None, :] + offset[None, :]
    if ROUNDS:
        _store_rounded(out, scales, rows, places, there, normed, R)
    else:
        tl.store(out + places, normed.to(out.dtype.element_ty), mask=there)


@triton.jit
def rounded_kernel(
    before, out, scales, R, M, GELU: tl.constexpr, TANH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    there = (rows[:, None] < R) & (columns[None, :] < M)
    places = rows[:, None].to(tl.int64) * M + columns[None, :]
    x = tl.load(before + places, mask=there, other=0.0).to(tl.float32)
    if GELU:
        share, _ = gelu_and_slope(x, TANH)
        x *= share
    _store_rounded(out, scales, rows, places, there, x, R)


def norm(stream: Tensor, shift: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    out = torch.empty_like(stream)
    _norm(stream, None, shift, weight, bias, eps, stream, out, None)
    return out


def norm_rounded(
    stream: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    total = stream if branch is None else torch.empty_like(stream)
    out, scales = torch.empty_like(stream, dtype=EIGHT_BITS), _scales(stream)
    _norm(stream, branch, None, weight, bias, eps, total, out, scales)
    return total, out, scales


def rounded(before: Tensor, gelu: bool, tanh: bool, launch: Any = direct) -> tuple[Tensor, Tensor]:
    """(R, M), GELU of it if asked for → 8 bits, and a scale for each row (R, 1)."""
    rows, width = before.shape
    out, scales = torch.empty_like(before, dtype=EIGHT_BITS), _scales(before)
    launch(rounded_kernel)[(triton.cdiv(rows, ROUND["ROWS"]),)](
        before, out, scales, rows, width, GELU=gelu, TANH=tanh, COLUMNS=triton.next_power_of_2(width), **ROUND
    )
    return out, scales


@torch.library.triton_op("vitkit::rounded", mutates_args={})
def rounded_operator(before: Tensor, gelu: bool, tanh: bool) -> tuple[Tensor, Tensor]:
    return rounded(before, gelu, tanh, torch.library.wrap_triton)


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
    direct(norm_kernel)[(triton.cdiv(rows, NORM["ROWS"]),)](
        stream,
        stream if branch is None else branch,
        stream if shift is None else shift,
        weight,
        bias,
        total,
        out,
        out if scales is None else scales,
        rows,
        width,
        eps,
        ADDS=branch is not None,
        SHIFTS=shift is not None,
        ROUNDS=scales is not None,
        COLUMNS=triton.next_power_of_2(width),
        **NORM,
    )
