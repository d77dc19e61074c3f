"""Rotary positions in place: the queries and keys of a packed projection are turned in one pass over memory.

Backward turns their gradients the other way, and sums them over tokens for the bias of the projection.

Shapes: B images, T tokens, N patches, H heads, d width of a head, W = H·d, R = B·T rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import launcher

TILE_ROWS, PROGRAM_ROWS = 32, 128


@triton.jit
def rotate_kernel(
    qkv,
    cos,
    sin,
    sums,
    R,
    T,
    special,
    H: tl.constexpr,
    d: tl.constexpr,
    STEP: tl.constexpr,
    DISTANCE: tl.constexpr,
    INVERSE: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS_PER_PROGRAM: tl.constexpr,
):
    """Turn one head's queries, or keys, of ROWS_PER_PROGRAM rows. Pairs are STEP apart, their numbers DISTANCE."""
    pairs = tl.arange(0, PAIRS)
    columns = tl.program_id(1) * d + pairs * STEP  # the first H programs have the queries, the others the keys
    first_total, second_total = tl.zeros((ROWS, PAIRS), tl.float32), tl.zeros((ROWS, PAIRS), tl.float32)
    for step in range(0, ROWS_PER_PROGRAM, ROWS):
        rows = tl.program_id(0) * ROWS_PER_PROGRAM + step + tl.arange(0, ROWS)
        patches = rows % T - special
        inside = (rows[:, None] < R) & (pairs[None, :] < d // 2)
        turned = inside & (patches[:, None] >= 0)
        offsets = rows[:, None].to(tl.int64) * (3 * H * d) + columns[None, :]
        a = tl.load(qkv + offsets, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(qkv + offsets + DISTANCE, mask=inside, other=0.0).to(tl.float32)
        table_offsets = patches[:, None] * d + pairs[None, :] * STEP
        cosine = tl.load(cos + table_offsets, mask=turned, other=1.0).to(tl.float32)
        sine = tl.load(sin + table_offsets, mask=turned, other=0.0).to(tl.float32)
        if INVERSE:
            sine = -sine
        first, second = a * cosine - b * sine, b * cosine + a * sine
        tl.store(qkv + offsets, first.to(qkv.dtype.element_ty), mask=turned)
        tl.store(qkv + offsets + DISTANCE, second.to(qkv.dtype.element_ty), mask=turned)
        first_total += first
        second_total += second
    if INVERSE:
        sums += tl.program_id(0) * (2 * H * d) + columns
        tl.store(sums, tl.sum(first_total, axis=0), mask=pairs < d // 2)
        tl.store(sums + DISTANCE, tl.sum(second_total, axis=0), mask=pairs < d // 2)


def rotate(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, interleaved: bool, inverse: bool) -> Tensor:
    """Turn the last N tokens of (B, T, 3·W) by tables (N, d), in place.

    With `inverse`, turn them back, and return the sums over all tokens of queries and keys, in parts: (n, 2·W) float32.
    """
    batch, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    depth, rows = width // heads, batch * tokens
    parts = triton.cdiv(rows, PROGRAM_ROWS)
    sums = qkv.new_empty(parts if inverse else 0, 2 * width, dtype=torch.float32)
    step, distance = (2, 1) if interleaved else (1, depth // 2)
    launcher(rotate_kernel)[(parts, 2 * heads)](
        qkv,
        cos,
        sin,
        sums,
        rows,
        tokens,
        tokens - cos.shape[0],
        H=heads,
        d=depth,
        STEP=step,
        DISTANCE=distance,
        INVERSE=inverse,
        ROWS=TILE_ROWS,
        PAIRS=triton.next_power_of_2(depth // 2),
        ROWS_PER_PROGRAM=PROGRAM_ROWS,
        num_warps=4,
    )
    return sums
