"""The backward of LayerNorm beside a residual connection: what came back through the norm and what came past it, added,
in one pass that also sums the gradients of the norm's own weights.

Mean and deviation are computed again, for the row is there. Shapes: R rows, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import direct

# rows that a program goes through, and of them at a time, measured on an H200: up to 256 and 512 columns; above, a
# width that is a power of two, and one that is not
SMALL, MIDDLE = {"EACH": 16, "ROWS": 1, "num_warps": 1}, {"EACH": 48, "ROWS": 2, "num_warps": 2}
FULL, PADDED = {"EACH": 48, "ROWS": 2, "num_warps": 4}, {"EACH": 48, "ROWS": 1, "num_warps": 2}


@triton.jit
def backward_kernel(
    x_in,
    weight,
    past,
    through,
    out,
    sums,
    R,
    D,
    EPS: tl.constexpr,
    EACH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    columns = tl.arange(0, COLUMNS)
    inside = columns < D
    slope = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    weight_sum, bias_sum = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, EACH, ROWS):
        rows = tl.program_id(0) * EACH + step + tl.arange(0, ROWS)
        there = (rows[:, None] < R) & inside[None, :]
        places = rows[:, None].to(tl.int64) * D + columns[None, :]
        x = tl.load(x_in + places, mask=there, other=0.0).to(tl.float32)
        above = tl.load(through + places, mask=there, other=0.0).to(tl.float32)
        beside = tl.load(past + places, mask=there, other=0.0).to(tl.float32)
        centred = tl.where(there, x - (tl.sum(x, axis=1) / D)[:, None], 0.0)
        spread = tl.rsqrt(tl.sum(centred * centred, axis=1) / D + EPS)[:, None]
        normed = centred * spread
        pull = above * slope
        along, across = tl.sum(pull * normed, axis=1) / D, tl.sum(pull, axis=1) / D
        found = (pull - across[:, None] - normed * along[:, None]) * spread + beside
        tl.store(out + places, found.to(out.dtype.element_ty), mask=there)
        weight_sum += above * normed
        bias_sum += above
    place = tl.program_id(0) * 2 * D + columns
    tl.store(sums + place, tl.sum(weight_sum, axis=0), mask=inside)
    tl.store(sums + place + D, tl.sum(bias_sum, axis=0), mask=inside)


def norm_backward(
    past: Tensor, through: Tensor, x: Tensor, weight: Tensor, eps: float, launch: Any = direct
) -> tuple[Tensor, Tensor]:
    """Gradients of what went past the norm and through it, (R, D) each → that of x (R, D), and those of the norm's
    weight and bias beside each other, in parts (n, 2·D)."""
    rows, width = x.shape
    columns = triton.next_power_of_2(width)
    tiles = SMALL if columns <= 256 else MIDDLE if columns == 512 else FULL if columns == width else PADDED
    out, parts = torch.empty_like(x), triton.cdiv(rows, tiles["EACH"])
    sums = x.new_empty(parts, 2 * width, dtype=torch.float32)
    # eps is part of the kernel: a compiled graph would hand it over as fp64, and all that it touches would become that
    launch(backward_kernel)[(parts,)](
        x, weight, past, through, out, sums, rows, width, EPS=eps, COLUMNS=columns, **tiles
    )
    return out, sums


@torch.library.triton_op("vitkit::norm_backward", mutates_args={})
def norm_backward_operator(
    past: Tensor, through: Tensor, x: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return norm_backward(past, through, x, weight, eps, torch.library.wrap_triton)
