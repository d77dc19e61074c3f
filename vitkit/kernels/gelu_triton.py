"""GELU, and its backward with what a layer before and after it need from the same pass.

The tanh form is computed as x·σ(2u), which is the same function: σ takes one exponential, where tanh has branches that
the memory waits for. Backward computes GELU's own output again instead of having kept it, and sums its gradient over
rows for the bias of the layer before: four passes over memory are one.

Shapes: R rows, C columns.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import direct

TILE_ROWS, TILE_COLUMNS, ROWS_EACH = 8, 128, 128


@triton.jit
def gelu_and_slope(x, TANH: tl.constexpr):
    """float32 → GELU(x) / x, and the derivative of GELU at x."""
    if TANH:
        share = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        return share, share + x * share * (1 - share) * (1.5957691216057308 + 0.21406444881780098 * x * x)
    # Abramowitz and Stegun 7.1.26, to 1.5e-7: its exponential serves the derivative too; erf would be waited for
    density = tl.exp(-0.5 * x * x)
    t = 1 / (1 + 0.23164188 * tl.abs(x))
    tail = 0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)
    tail = density * t * (0.127414796 + t * (-0.142248368 + t * tail))
    share = tl.where(x < 0, tail, 1 - tail)
    return share, share + x * 0.3989422804014327 * density


@triton.jit
def forward_kernel(before, out, count, TANH: tl.constexpr, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(before + places, mask=places < count, other=0.0).to(tl.float32)
    share, _ = gelu_and_slope(x, TANH)
    tl.store(out + places, (x * share).to(out.dtype.element_ty), mask=places < count)


@triton.jit
def backward_kernel(
    before,
    grad,
    found,
    after,
    sums,
    R,
    C,
    TANH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EACH: tl.constexpr,
):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)  # summed at the end: between warps only once
    for step in range(0, EACH, ROWS):
        rows = tl.program_id(1) * EACH + step + tl.arange(0, ROWS)
        there = (rows[:, None] < R) & (columns[None, :] < C)
        places = rows[:, None].to(tl.int64) * C + columns[None, :]
        x = tl.load(before + places, mask=there, other=0.0).to(tl.float32)
        above = tl.load(grad + places, mask=there, other=0.0).to(tl.float32)
        share, slope = gelu_and_slope(x, TANH)
        below = above * slope
        tl.store(found + places, below.to(found.dtype.element_ty), mask=there)
        tl.store(after + places, (x * share).to(after.dtype.element_ty), mask=there)
        total += below
    tl.store(sums + tl.program_id(1) * C + columns, tl.sum(total, axis=0), mask=columns < C)


def gelu(before: Tensor, tanh: bool, launch: Any = direct) -> Tensor:
    out = torch.empty_like(before)
    launch(forward_kernel)[(triton.cdiv(before.numel(), 2048),)](
        before, out, before.numel(), TANH=tanh, BLOCK=2048, num_warps=4
    )
    return out


def gelu_backward(grad: Tensor, before: Tensor, tanh: bool, launch: Any = direct) -> tuple[Tensor, Tensor, Tensor]:
    """(R, C) twice → the gradient before GELU and what GELU gave, (R, C), and that gradient's sums, in parts (n, C)."""
    rows, columns = before.shape
    found, after = torch.empty_like(before), torch.empty_like(before)
    parts = triton.cdiv(rows, ROWS_EACH)
    sums = before.new_empty(parts, columns, dtype=torch.float32)
    launch(backward_kernel)[(triton.cdiv(columns, TILE_COLUMNS), parts)](
        before,
        grad,
        found,
        after,
        sums,
        rows,
        columns,
        TANH=tanh,
        ROWS=TILE_ROWS,
        COLUMNS=TILE_COLUMNS,
        EACH=ROWS_EACH,
        num_warps=4,
    )
    return found, after, sums


@torch.library.triton_op("vitkit::gelu", mutates_args={})
def gelu_operator(before: Tensor, tanh: bool) -> Tensor:
    return gelu(before, tanh, torch.library.wrap_triton)


@torch.library.triton_op("vitkit::gelu_backward", mutates_args={})
def gelu_backward_operator(grad: Tensor, before: Tensor, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    return gelu_backward(grad, before, tanh, torch.library.wrap_triton)
