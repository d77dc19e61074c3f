"""GELU, and its backward with what the layers before and after it need from the same pass.

The tanh form is computed as x·σ(2u), which is the same function: σ takes one exponential, where tanh has branches that
stall the memory pipeline. Backward recomputes GELU's output instead of storing it, and sums its gradient over rows for
the bias of the layer before: one pass over memory instead of four.

Shapes: R rows, C columns.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import launcher, operator

TILE_ROWS, TILE_COLUMNS, PROGRAM_ROWS = 8, 128, 128


@triton.jit
def gelu_ratio_and_derivative(x, KIND: tl.constexpr):
    """Return GELU(x) / x and the derivative of GELU at x, in float32."""
    if KIND == "tanh":
        cdf = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        return cdf, cdf + x * cdf * (1 - cdf) * (1.5957691216057308 + 0.21406444881780098 * x * x)
    if KIND == "quick":
        cdf = tl.sigmoid(1.702 * x)
        return cdf, cdf + x * cdf * (1 - cdf) * 1.702
    # exact: Abramowitz and Stegun 7.1.26, to 1.5e-7: the derivative shares its exponential; erf would stall
    density = tl.exp(-0.5 * x * x)
    t = 1 / (1 + 0.23164188 * tl.abs(x))
    tail = 0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)
    tail = density * t * (0.127414796 + t * (-0.142248368 + t * tail))
    cdf = tl.where(x < 0, tail, 1 - tail)
    return cdf, cdf + x * 0.3989422804014327 * density


@triton.jit
def forward_kernel(before, out, count, KIND: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(before + offsets, mask=offsets < count, other=0.0).to(tl.float32)
    cdf, _ = gelu_ratio_and_derivative(x, KIND)
    tl.store(out + offsets, (x * cdf).to(out.dtype.element_ty), mask=offsets < count)


@triton.jit
def backward_kernel(
    before,
    grad,
    grad_before,
    after,
    sums,
    R,
    C,
    KIND: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS_PER_PROGRAM: tl.constexpr,
):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)  # summed at the end: between warps only once
    for step in range(0, ROWS_PER_PROGRAM, ROWS):
        rows = tl.program_id(1) * ROWS_PER_PROGRAM + step + tl.arange(0, ROWS)
        mask = (rows[:, None] < R) & (columns[None, :] < C)
        offsets = rows[:, None].to(tl.int64) * C + columns[None, :]
        x = tl.load(before + offsets, mask=mask, other=0.0).to(tl.float32)
        grad_out = tl.load(grad + offsets, mask=mask, other=0.0).to(tl.float32)
        cdf, derivative = gelu_ratio_and_derivative(x, KIND)
        grad_in = grad_out * derivative
        tl.store(grad_before + offsets, grad_in.to(grad_before.dtype.element_ty), mask=mask)
        tl.store(after + offsets, (x * cdf).to(after.dtype.element_ty), mask=mask)
        total += grad_in
    tl.store(sums + tl.program_id(1) * C + columns, tl.sum(total, axis=0), mask=columns < C)


@operator
def gelu(before: Tensor, kind: str, launch: Any = launcher) -> Tensor:
    out = torch.empty_like(before)
    launch(forward_kernel)[(triton.cdiv(before.numel(), 2048),)](
        before, out, before.numel(), KIND=kind, BLOCK=2048, num_warps=4
    )
    return out


@operator
def gelu_backward(grad: Tensor, before: Tensor, kind: str, launch: Any = launcher) -> tuple[Tensor, Tensor, Tensor]:
    """(R, C) each → the gradient before GELU and the recomputed output, (R, C), and partial bias sums (n, C)."""
    rows, columns = before.shape
    grad_before, after = torch.empty_like(before), torch.empty_like(before)
    parts = triton.cdiv(rows, PROGRAM_ROWS)
    sums = before.new_empty(parts, columns, dtype=torch.float32)
    tiles = {"ROWS": TILE_ROWS, "COLUMNS": TILE_COLUMNS, "ROWS_PER_PROGRAM": PROGRAM_ROWS, "num_warps": 4}
    launch(backward_kernel)[(triton.cdiv(columns, TILE_COLUMNS), parts)](
        before, grad, grad_before, after, sums, rows, columns, KIND=kind, **tiles
    )
    return grad_before, after, sums
