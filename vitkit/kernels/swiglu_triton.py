"""SwiGLU's SiLU(gate)·up, and its backward with what the layers before and after it need from the same pass.

As for GELU, backward recomputes the output instead of storing it, and sums its gradients over rows for the bias.

Shapes: R rows, M columns of gate and of up, which stand side by side: (R, 2·M).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import launcher, operator

FORWARD_ROWS, TILE_ROWS, TILE_COLUMNS, PROGRAM_ROWS = 16, 8, 128, 128


@triton.jit
def forward_kernel(gate_up, out, R, M, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (rows[:, None] < R) & (columns[None, :] < M)
    offsets = rows[:, None].to(tl.int64) * (2 * M) + columns[None, :]
    gate = tl.load(gate_up + offsets, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + offsets + M, mask=mask, other=0.0).to(tl.float32)
    after = gate * tl.sigmoid(gate) * up
    tl.store(out + rows[:, None].to(tl.int64) * M + columns[None, :], after.to(out.dtype.element_ty), mask=mask)


@triton.jit
def backward_kernel(
    gate_up,
    grad,
    grad_gate_up,
    after,
    sums,
    R,
    M,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS_PER_PROGRAM: tl.constexpr,
):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    gate_total, up_total = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, ROWS_PER_PROGRAM, ROWS):
        rows = tl.program_id(1) * ROWS_PER_PROGRAM + step + tl.arange(0, ROWS)
        mask = (rows[:, None] < R) & (columns[None, :] < M)
        both = rows[:, None].to(tl.int64) * (2 * M) + columns[None, :]
        single = rows[:, None].to(tl.int64) * M + columns[None, :]
        gate = tl.load(gate_up + both, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(gate_up + both + M, mask=mask, other=0.0).to(tl.float32)
        grad_out = tl.load(grad + single, mask=mask, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(gate)
        silu = gate * sigmoid
        grad_gate, grad_up = grad_out * up * (sigmoid + silu * (1 - sigmoid)), grad_out * silu
        tl.store(grad_gate_up + both, grad_gate.to(grad_gate_up.dtype.element_ty), mask=mask)
        tl.store(grad_gate_up + both + M, grad_up.to(grad_gate_up.dtype.element_ty), mask=mask)
        tl.store(after + single, (silu * up).to(after.dtype.element_ty), mask=mask)
        gate_total += grad_gate
        up_total += grad_up
    sums += tl.program_id(1) * (2 * M) + columns
    tl.store(sums, tl.sum(gate_total, axis=0), mask=columns < M)
    tl.store(sums + M, tl.sum(up_total, axis=0), mask=columns < M)


@operator
def swiglu(gate_up: Tensor, launch: Any = launcher) -> Tensor:
    """(…, 2·M) → (…, M)."""
    hidden = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], hidden)
    rows = gate_up.numel() // (2 * hidden)
    launch(forward_kernel)[(triton.cdiv(rows, FORWARD_ROWS), triton.cdiv(hidden, TILE_COLUMNS))](
        gate_up, out, rows, hidden, ROWS=FORWARD_ROWS, COLUMNS=TILE_COLUMNS, num_warps=4
    )
    return out


@operator
def swiglu_backward(grad: Tensor, gate_up: Tensor, launch: Any = launcher) -> tuple[Tensor, Tensor, Tensor]:
    """(R, M), (R, 2·M) → the gradient (R, 2·M), the recomputed output (R, M), and partial bias sums (n, 2·M)."""
    rows, hidden = grad.shape
    grad_gate_up, after = torch.empty_like(gate_up), torch.empty_like(grad)
    parts = triton.cdiv(rows, PROGRAM_ROWS)
    sums = grad.new_empty(parts, 2 * hidden, dtype=torch.float32)
    tiles = {"ROWS": TILE_ROWS, "COLUMNS": TILE_COLUMNS, "ROWS_PER_PROGRAM": PROGRAM_ROWS, "num_warps": 4}
    launch(backward_kernel)[(triton.cdiv(hidden, TILE_COLUMNS), parts)](
        gate_up, grad, grad_gate_up, after, sums, rows, hidden, **tiles
    )
    return grad_gate_up, after, sums
