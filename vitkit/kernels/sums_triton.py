"""Sums over rows, for the gradients of biases: torch's own leaves most of a GPU idle where rows are short.

Shapes: R rows, C columns.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import direct

TILE_ROWS, TILE_COLUMNS, ROWS_EACH = 32, 64, 512


@triton.jit
def sum_kernel(x, sums, R, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EACH: tl.constexpr):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, EACH, ROWS):
        rows = tl.program_id(1) * EACH + step + tl.arange(0, ROWS)
        there = (rows[:, None] < R) & (columns[None, :] < C)
        places = rows[:, None].to(tl.int64) * C + columns[None, :]
        total += tl.load(x + places, mask=there, other=0.0).to(tl.float32)
    tl.store(sums + tl.program_id(1) * C + columns, tl.sum(total, axis=0), mask=columns < C)


def sums(x: Tensor) -> Tensor:
    """(R, C) → in parts (n, C), float32."""
    rows, columns = x.shape
    parts = triton.cdiv(rows, ROWS_EACH)
    found = x.new_empty(parts, columns, dtype=torch.float32)
    direct(sum_kernel)[(triton.cdiv(columns, TILE_COLUMNS), parts)](
        x, found, rows, columns, ROWS=TILE_ROWS, COLUMNS=TILE_COLUMNS, EACH=ROWS_EACH, num_warps=4
    )
    return found
