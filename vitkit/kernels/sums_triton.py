"""Sums over rows, for the gradients of biases: torch's own kernel leaves most of a GPU idle where rows are short.

Shapes: R rows, C columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import launcher

TILE_ROWS, TILE_COLUMNS, PROGRAM_ROWS = 32, 64, 512


@triton.jit
def sum_kernel(x, sums, R, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROWS_PER_PROGRAM: tl.constexpr):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, ROWS_PER_PROGRAM, ROWS):
        rows = tl.program_id(1) * ROWS_PER_PROGRAM + step + tl.arange(0, ROWS)
        mask = (rows[:, None] < R) & (columns[None, :] < C)
        offsets = rows[:, None].to(tl.int64) * C + columns[None, :]
        total += tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(sums + tl.program_id(1) * C + columns, tl.sum(total, axis=0), mask=columns < C)


def partial_row_sums(x: Tensor) -> Tensor:
    """(R, C) → partial sums (n, C), float32."""
    rows, columns = x.shape
    parts = triton.cdiv(rows, PROGRAM_ROWS)
    partial = x.new_empty(parts, columns, dtype=torch.float32)
    launcher(sum_kernel)[(triton.cdiv(columns, TILE_COLUMNS), parts)](
        x, partial, rows, columns, ROWS=TILE_ROWS, COLUMNS=TILE_COLUMNS, ROWS_PER_PROGRAM=PROGRAM_ROWS, num_warps=4
    )
    return partial
