"""The backward pass of LayerNorm at a residual connection.

One kernel adds the gradient through the norm to the gradient past it and sums the gradients of the norm's weight and
bias. Mean and deviation are recomputed from the row. Shapes: R rows, D width.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import launcher, operator

# tiles measured on an H200: up to 256 and 512 columns; above, a width that is a power of two, and one that is not
SMALL, MIDDLE = {"ROWS_PER_PROGRAM": 16, "ROWS": 1, "num_warps": 1}, {"ROWS_PER_PROGRAM": 48, "ROWS": 2, "num_warps": 2}
FULL, PADDED = {"ROWS_PER_PROGRAM": 48, "ROWS": 2, "num_warps": 4}, {"ROWS_PER_PROGRAM": 48, "ROWS": 1, "num_warps": 2}


@triton.jit
def backward_kernel(
    x_in,
    weight,
    grad_residual,
    grad_normed,
    out,
    sums,
    R,
    D,
    EPS: tl.constexpr,
    ROWS_PER_PROGRAM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    columns = tl.arange(0, COLUMNS)
    inside = columns < D
    scale_row = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    weight_sum, bias_sum = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, ROWS_PER_PROGRAM, ROWS):
        rows = tl.program_id(0) * ROWS_PER_PROGRAM + step + tl.arange(0, ROWS)
        mask = (rows[:, None] < R) & inside[None, :]
        offsets = rows[:, None].to(tl.int64) * D + columns[None, :]
        x = tl.load(x_in + offsets, mask=mask, other=0.0).to(tl.float32)
        grad_normed_row = tl.load(grad_normed + offsets, mask=mask, other=0.0).to(tl.float32)
        grad_residual_row = tl.load(grad_residual + offsets, mask=mask, other=0.0).to(tl.float32)
        centred = tl.where(mask, x - (tl.sum(x, axis=1) / D)[:, None], 0.0)
        rstd = tl.rsqrt(tl.sum(centred * centred, axis=1) / D + EPS)[:, None]
        normed = centred * rstd
        grad_scaled = grad_normed_row * scale_row
        mean_normed, mean = tl.sum(grad_scaled * normed, axis=1) / D, tl.sum(grad_scaled, axis=1) / D
        grad_x = (grad_scaled - mean[:, None] - normed * mean_normed[:, None]) * rstd + grad_residual_row
        tl.store(out + offsets, grad_x.to(out.dtype.element_ty), mask=mask)
        weight_sum += grad_normed_row * normed
        bias_sum += grad_normed_row
    offset = tl.program_id(0) * 2 * D + columns
    tl.store(sums + offset, tl.sum(weight_sum, axis=0), mask=inside)
    tl.store(sums + offset + D, tl.sum(bias_sum, axis=0), mask=inside)


@operator
def norm_backward(
    grad_residual: Tensor, grad_normed: Tensor, x: Tensor, weight: Tensor, eps: float, launch: Any = launcher
) -> tuple[Tensor, Tensor]:
    """Gradients of the residual and of the norm, (R, D) each → that of x (R, D), and partial sums of the gradients of
    the norm's weight and bias side by side (n, 2·D)."""
    rows, width = x.shape
    columns = triton.next_power_of_2(width)
    tiles = SMALL if columns <= 256 else MIDDLE if columns == 512 else FULL if columns == width else PADDED
    out, parts = torch.empty_like(x), triton.cdiv(rows, tiles["ROWS_PER_PROGRAM"])
    sums = x.new_empty(parts, 2 * width, dtype=torch.float32)
    # eps is a constant of the kernel: a compiled graph would pass it as fp64 and promote everything that it touches
    launch(backward_kernel)[(parts,)](
        x, weight, grad_residual, grad_normed, out, sums, rows, width, EPS=eps, COLUMNS=columns, **tiles
    )
    return out, sums
