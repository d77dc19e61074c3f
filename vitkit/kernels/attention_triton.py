"""The backward pass of attention, from packed query, key and value to their packed gradient and its sums over tokens.

Attention weights are recomputed from the scores, as in flash attention: once for the gradient of a tile of queries,
once for that of a tile of keys and values. The remaining tokens (5 of 197) are computed in a smaller tile. exp is
computed as exp2, which is a GPU instruction.

Shapes: B images, T tokens, H heads, d width of a head, W = H·d. M queries and N keys of a tile.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import launcher, operator

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows(start, first, count, stride, N: tl.constexpr, d: tl.constexpr, FULL: tl.constexpr):
    """Load N rows of d numbers; without FULL, rows beyond `count` are zeros."""
    rows = first + tl.arange(0, N)
    offsets = rows[:, None] * stride + tl.arange(0, d)[None, :]
    if FULL:
        return tl.load(start + offsets)
    return tl.load(start + offsets, mask=rows[:, None] < count, other=0.0)


@triton.jit
def _store_rows(start, first, count, stride, values, N: tl.constexpr, d: tl.constexpr):
    rows = first + tl.arange(0, N)
    tl.store(
        start + rows[:, None] * stride + tl.arange(0, d)[None, :],
        values.to(start.dtype.element_ty),
        mask=rows[:, None] < count,
    )


@triton.jit
def _query_gradient(
    query,
    start,
    grad_rows,
    row_lse,
    delta,
    first,
    T: tl.constexpr,
    W: tl.constexpr,
    N: tl.constexpr,
    d: tl.constexpr,
    FULL: tl.constexpr,
):
    """Return what a tile of keys adds to the gradient of M queries: (M, d)."""
    key, value = _rows(start + W, first, T, 3 * W, N, d, FULL), _rows(start + 2 * W, first, T, 3 * W, N, d, FULL)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (LOG2E * d**-0.5) - row_lse[:, None]  # (M, N)
    weights = tl.exp2(scores)
    if not FULL:
        weights = tl.where((first + tl.arange(0, N))[None, :] < T, weights, 0.0)
    grad_scores = weights * (tl.dot(grad_rows, tl.trans(value), input_precision="ieee") - delta[:, None])
    return tl.dot(grad_scores.to(key.dtype), key, input_precision="ieee")


@triton.jit
def _query_tile(
    qkv,
    mixed,
    grad,
    lse,
    deltas,
    out,
    sums,
    first,
    T: tl.constexpr,
    W: tl.constexpr,
    d: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    TAIL: tl.constexpr,
    FULL: tl.constexpr,
):
    """Store the gradient of M queries, and delta = Σ gradient · output of each row, which the keys need too."""
    rows = first + tl.arange(0, M)
    query, grad_rows = _rows(qkv, first, T, 3 * W, M, d, FULL), _rows(grad, first, T, W, M, d, FULL)
    output = _rows(mixed, first, T, W, M, d, FULL)
    delta = tl.sum(grad_rows.to(tl.float32) * output.to(tl.float32), axis=1)
    tl.store(deltas + rows, delta, mask=rows < T)
    row_lse = tl.load(lse + rows, mask=rows < T, other=float("inf")) * LOG2E
    grad_query = tl.zeros((M, d), tl.float32)
    for start_row in range(0, T // N * N, N):
        grad_query += _query_gradient(query, qkv, grad_rows, row_lse, delta, start_row, T, W, N, d, True)
    if TAIL > 0:
        grad_query += _query_gradient(query, qkv, grad_rows, row_lse, delta, T // N * N, T, W, TAIL, d, False)
    grad_query *= d**-0.5
    _store_rows(out, first, T, 3 * W, grad_query, M, d)
    tl.store(sums + tl.arange(0, d), tl.sum(grad_query, axis=0))  # rows beyond T are zero


@triton.jit
def query_backward_kernel(
    qkv,
    mixed,
    grad,
    lse,
    deltas,
    out,
    sums,
    tiles,
    T: tl.constexpr,
    H: tl.constexpr,
    d: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    TAIL: tl.constexpr,
    LAST: tl.constexpr,
):
    W: tl.constexpr = H * d
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    image, column = (head // H).to(tl.int64), (head % H) * d
    qkv, out = qkv + image * T * 3 * W + column, out + image * T * 3 * W + column
    mixed, grad = mixed + image * T * W + column, grad + image * T * W + column
    lse, deltas = lse + head.to(tl.int64) * T, deltas + head.to(tl.int64) * T
    sums += (image * tiles + tile) * 3 * W + column
    if LAST > 0 and tile == tiles - 1:
        _query_tile(qkv, mixed, grad, lse, deltas, out, sums, tile * M, T, W, d, LAST, N, TAIL, False)
    else:
        _query_tile(qkv, mixed, grad, lse, deltas, out, sums, tile * M, T, W, d, M, N, TAIL, True)


@triton.jit
def _key_value_gradient(
    key,
    value,
    grad_key,
    grad_value,
    start,
    grad_rows,
    lse,
    deltas,
    first,
    T: tl.constexpr,
    W: tl.constexpr,
    M: tl.constexpr,
    d: tl.constexpr,
    FULL: tl.constexpr,
):
    """Add what a tile of queries contributes to the gradients of a tile of keys and values: (N, d) each."""
    query, output = _rows(start, first, T, 3 * W, M, d, FULL), _rows(grad_rows, first, T, W, M, d, FULL)
    rows = first + tl.arange(0, M)
    row_lse = tl.load(lse + rows, mask=rows < T, other=float("inf")) * LOG2E
    delta = tl.load(deltas + rows, mask=rows < T, other=0.0)
    scores = tl.dot(key, tl.trans(query), input_precision="ieee") * (LOG2E * d**-0.5) - row_lse[None, :]  # (N, M)
    weights = tl.exp2(scores)
    grad_value += tl.dot(weights.to(key.dtype), output, input_precision="ieee")
    grad_scores = weights * (tl.dot(value, tl.trans(output), input_precision="ieee") - delta[None, :])
    grad_key += tl.dot(grad_scores.to(key.dtype), query, input_precision="ieee")
    return grad_key, grad_value


@triton.jit
def key_backward_kernel(
    qkv,
    grad,
    lse,
    deltas,
    out,
    sums,
    skipped,
    tiles,
    T: tl.constexpr,
    H: tl.constexpr,
    d: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    TAIL: tl.constexpr,
    STEP: tl.constexpr,
    FULL: tl.constexpr,
):
    """Store the gradients of N keys and values, for `tiles` tiles that are STEP keys apart, after `skipped` others."""
    W: tl.constexpr = H * d
    tile, head = skipped + tl.program_id(0) % tiles, tl.program_id(0) // tiles
    image, column, first = (head // H).to(tl.int64), (head % H) * d, tile * STEP
    qkv, out = qkv + image * T * 3 * W + column, out + image * T * 3 * W + column
    grad += image * T * W + column
    lse, deltas = lse + head.to(tl.int64) * T, deltas + head.to(tl.int64) * T
    sums += (image * tl.cdiv(T, STEP) + tile) * 3 * W + column
    key = _rows(qkv + W, first, T, 3 * W, N, d, FULL)
    value = _rows(qkv + 2 * W, first, T, 3 * W, N, d, FULL)
    grad_key, grad_value = tl.zeros((N, d), tl.float32), tl.zeros((N, d), tl.float32)
    for start_row in range(0, T // M * M, M):
        grad_key, grad_value = _key_value_gradient(
            key, value, grad_key, grad_value, qkv, grad, lse, deltas, start_row, T, W, M, d, True
        )
    if TAIL > 0:
        grad_key, grad_value = _key_value_gradient(
            key, value, grad_key, grad_value, qkv, grad, lse, deltas, T // M * M, T, W, TAIL, d, False
        )
    grad_key *= d**-0.5
    if not FULL:
        inside = (first + tl.arange(0, N))[:, None] < T
        grad_key, grad_value = tl.where(inside, grad_key, 0.0), tl.where(inside, grad_value, 0.0)
    _store_rows(out + W, first, T, 3 * W, grad_key, N, d)
    _store_rows(out + 2 * W, first, T, 3 * W, grad_value, N, d)
    tl.store(sums + W + tl.arange(0, d), tl.sum(grad_key, axis=0))
    tl.store(sums + 2 * W + tl.arange(0, d), tl.sum(grad_value, axis=0))


# Measured with 197 tokens on an H200. The last, partly filled tile of keys has a launch of its own (one warp for 16
# rows): in the main launch it would take as long as a full tile. For queries, one launch for all tiles is faster.
TILE = 64  # queries, or keys, per program
QUERY_TILES = {"M": TILE, "N": 64, "num_warps": 4, "num_stages": 2}
KEY_TILES = {"M": 32, "num_warps": 4, "num_stages": 1}
TAIL_KEYS = {"M": 32, "num_warps": 1, "num_stages": 2}


def tail_size(tokens: int, tile: int) -> int:
    """Return the size of the last, partly filled tile: a power of two, at least 16, or 0 where none is left over."""
    left = tokens % tile
    return max(16, triton.next_power_of_2(left)) if left else 0


@operator
def attention_backward(
    grad: Tensor, qkv: Tensor, mixed: Tensor, lse: Tensor, launch: Any = launcher
) -> tuple[Tensor, Tensor]:
    """(B, T, W) → the gradient of qkv (B, T, 3·W), and its sums over tokens, in parts: (n, 3·W) float32."""
    heads = lse.shape[1]
    batch, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out, deltas = torch.empty_like(qkv), lse.new_empty(batch, heads, tokens)
    tiles, filled, left = triton.cdiv(tokens, TILE), tokens // TILE, tail_size(tokens, TILE)
    sums = qkv.new_empty(batch * tiles, 3 * width, dtype=torch.float32)
    shape = {"T": tokens, "H": heads, "d": width // heads}
    queries, keys = (qkv, mixed, grad, lse, deltas, out, sums), (qkv, grad, lse, deltas, out, sums)
    launch(query_backward_kernel)[(batch * heads * tiles,)](
        *queries, tiles, **shape, LAST=left, TAIL=tail_size(tokens, QUERY_TILES["N"]), **QUERY_TILES
    )
    shape |= {"STEP": TILE}
    if filled:
        tail = tail_size(tokens, KEY_TILES["M"])
        launch(key_backward_kernel)[(batch * heads * filled,)](
            *keys, 0, filled, **shape, N=TILE, FULL=True, TAIL=tail, **KEY_TILES
        )
    if left:
        tail, tuning = tail_size(tokens, TAIL_KEYS["M"]), TAIL_KEYS if left == 16 else KEY_TILES
        launch(key_backward_kernel)[(batch * heads,)](
            *keys, filled, 1, **shape, N=left, FULL=False, TAIL=tail, **tuning
        )
    return out, sums
