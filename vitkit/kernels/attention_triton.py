"""The backward of attention, from the packed projections to their packed gradient and its sums.

Weights are computed again from the scores, as everywhere: once for the gradient of a tile of queries, once for that of
a tile of keys and values. Tokens that do not fill a tile, 5 of a picture's 197, make a smaller one. Scores are in
powers of two, for which a GPU has an instruction.

Shapes: B pictures, T tokens, H heads, d width of a head, W = H·d. M queries and N keys of a tile.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.kernels.dispatch import direct

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _rows(start, first, count, stride, N: tl.constexpr, d: tl.constexpr, WHOLE: tl.constexpr):
    """(N, d) of a matrix; unless all of them are there, zeros below its end."""
    rows = first + tl.arange(0, N)
    places = rows[:, None] * stride + tl.arange(0, d)[None, :]
    if WHOLE:
        return tl.load(start + places)
    return tl.load(start + places, mask=rows[:, None] < count, other=0.0)


@triton.jit
def _store_rows(start, first, count, stride, values, N: tl.constexpr, d: tl.constexpr):
    rows = first + tl.arange(0, N)
    tl.store(
        start + rows[:, None] * stride + tl.arange(0, d)[None, :],
        values.to(start.dtype.element_ty),
        mask=rows[:, None] < count,
    )


@triton.jit
def _pull_queries(
    query,
    start,
    above,
    log,
    delta,
    first,
    T: tl.constexpr,
    W: tl.constexpr,
    N: tl.constexpr,
    d: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """What a tile of keys pulls at queries with: (M, d)."""
    key, value = _rows(start + W, first, T, 3 * W, N, d, WHOLE), _rows(start + 2 * W, first, T, 3 * W, N, d, WHOLE)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (LOG2E * d**-0.5) - log[:, None]  # (M, N)
    weights = tl.exp2(scores)
    if not WHOLE:
        weights = tl.where((first + tl.arange(0, N))[None, :] < T, weights, 0.0)
    pull = weights * (tl.dot(above, tl.trans(value), input_precision="ieee") - delta[:, None])
    return tl.dot(pull.to(key.dtype), key, input_precision="ieee")


@triton.jit
def _queries(
    qkv,
    mixed,
    grad,
    logs,
    deltas,
    out,
    sums,
    first,
    T: tl.constexpr,
    W: tl.constexpr,
    d: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    REST: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """The gradient of M queries; and Σ gradient · output of each row, which the keys' need too."""
    rows = first + tl.arange(0, M)
    query, above = _rows(qkv, first, T, 3 * W, M, d, WHOLE), _rows(grad, first, T, W, M, d, WHOLE)
    told = _rows(mixed, first, T, W, M, d, WHOLE)
    delta = tl.sum(above.to(tl.float32) * told.to(tl.float32), axis=1)
    tl.store(deltas + rows, delta, mask=rows < T)
    log = tl.load(logs + rows, mask=rows < T, other=float("inf")) * LOG2E
    found = tl.zeros((M, d), tl.float32)
    for place in range(0, T // N * N, N):
        found += _pull_queries(query, qkv, above, log, delta, place, T, W, N, d, True)
    if REST > 0:
        found += _pull_queries(query, qkv, above, log, delta, T // N * N, T, W, REST, d, False)
    found *= d**-0.5
    _store_rows(out, first, T, 3 * W, found, M, d)
    tl.store(sums + tl.arange(0, d), tl.sum(found, axis=0))  # rows beyond T have found nothing


@triton.jit
def query_backward_kernel(
    qkv,
    mixed,
    grad,
    logs,
    deltas,
    out,
    sums,
    tiles,
    T: tl.constexpr,
    H: tl.constexpr,
    d: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    REST: tl.constexpr,
    LAST: tl.constexpr,
):
    W: tl.constexpr = H * d
    tile, head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    picture, column = (head // H).to(tl.int64), (head % H) * d
    qkv, out = qkv + picture * T * 3 * W + column, out + picture * T * 3 * W + column
    mixed, grad = mixed + picture * T * W + column, grad + picture * T * W + column
    logs, deltas = logs + head.to(tl.int64) * T, deltas + head.to(tl.int64) * T
    sums += (picture * tiles + tile) * 3 * W + column
    if LAST > 0 and tile == tiles - 1:
        _queries(qkv, mixed, grad, logs, deltas, out, sums, tile * M, T, W, d, LAST, N, REST, False)
    else:
        _queries(qkv, mixed, grad, logs, deltas, out, sums, tile * M, T, W, d, M, N, REST, True)


@triton.jit
def _pull_keys(
    key,
    value,
    key_found,
    value_found,
    start,
    above,
    logs,
    deltas,
    first,
    T: tl.constexpr,
    W: tl.constexpr,
    M: tl.constexpr,
    d: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """The gradients of a tile of keys and values, with a tile of queries added: (N, d) twice."""
    query, told = _rows(start, first, T, 3 * W, M, d, WHOLE), _rows(above, first, T, W, M, d, WHOLE)
    rows = first + tl.arange(0, M)
    log = tl.load(logs + rows, mask=rows < T, other=float("inf")) * LOG2E
    delta = tl.load(deltas + rows, mask=rows < T, other=0.0)
    scores = tl.dot(key, tl.trans(query), input_precision="ieee") * (LOG2E * d**-0.5) - log[None, :]  # (N, M)
    weights = tl.exp2(scores)
    value_found += tl.dot(weights.to(key.dtype), told, input_precision="ieee")
    pull = weights * (tl.dot(value, tl.trans(told), input_precision="ieee") - delta[None, :])
    key_found += tl.dot(pull.to(key.dtype), query, input_precision="ieee")
    return key_found, value_found


@triton.jit
def key_backward_kernel(
    qkv,
    grad,
    logs,
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
    REST: tl.constexpr,
    EACH: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """The gradients of N keys and their values: those of `tiles` tiles, EACH keys apart, after `skipped` others."""
    W: tl.constexpr = H * d
    tile, head = skipped + tl.program_id(0) % tiles, tl.program_id(0) // tiles
    picture, column, first = (head // H).to(tl.int64), (head % H) * d, tile * EACH
    qkv, out = qkv + picture * T * 3 * W + column, out + picture * T * 3 * W + column
    grad += picture * T * W + column
    logs, deltas = logs + head.to(tl.int64) * T, deltas + head.to(tl.int64) * T
    sums += (picture * tl.cdiv(T, EACH) + tile) * 3 * W + column
    key = _rows(qkv + W, first, T, 3 * W, N, d, WHOLE)
    value = _rows(qkv + 2 * W, first, T, 3 * W, N, d, WHOLE)
    key_found, value_found = tl.zeros((N, d), tl.float32), tl.zeros((N, d), tl.float32)
    for place in range(0, T // M * M, M):
        key_found, value_found = _pull_keys(
            key, value, key_found, value_found, qkv, grad, logs, deltas, place, T, W, M, d, True
        )
    if REST > 0:
        key_found, value_found = _pull_keys(
            key, value, key_found, value_found, qkv, grad, logs, deltas, T // M * M, T, W, REST, d, False
        )
    key_found *= d**-0.5
    if not WHOLE:
        there = (first + tl.arange(0, N))[:, None] < T
        key_found, value_found = tl.where(there, key_found, 0.0), tl.where(there, value_found, 0.0)
    _store_rows(out + W, first, T, 3 * W, key_found, N, d)
    _store_rows(out + 2 * W, first, T, 3 * W, value_found, N, d)
    tl.store(sums + W + tl.arange(0, d), tl.sum(key_found, axis=0))
    tl.store(sums + 2 * W + tl.arange(0, d), tl.sum(value_found, axis=0))


# Measured with 197 tokens on an H200. The few keys that fill no tile are launched on their own, a warp each: among the
# others they would take as long as a tile, and more registers. A last tile of queries does better among the others.
TILE = 64  # queries, and keys, that a program is for
QUERY_TILES = {"M": TILE, "N": 64, "num_warps": 4, "num_stages": 2}
KEY_TILES = {"M": 32, "num_warps": 4, "num_stages": 1}
FEW_KEYS = {"M": 32, "num_warps": 1, "num_stages": 2}


def rest(tokens: int, tile: int) -> int:
    """The size of the last tile, which is not filled: a power of two, at least 16, or 0 where none is left over."""
    left = tokens % tile
    return max(16, triton.next_power_of_2(left)) if left else 0


def attention_backward(
    grad: Tensor, qkv: Tensor, mixed: Tensor, logs: Tensor, launch: Any = direct
) -> tuple[Tensor, Tensor]:
    """(B, T, W) → the gradient of qkv (B, T, 3·W), and its sums over tokens, in parts: (n, 3·W) float32."""
    heads = logs.shape[1]
    batch, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out, deltas = torch.empty_like(qkv), logs.new_empty(batch, heads, tokens)
    tiles, filled, left = triton.cdiv(tokens, TILE), tokens // TILE, rest(tokens, TILE)
    sums = qkv.new_empty(batch * tiles, 3 * width, dtype=torch.float32)
    shape = {"T": tokens, "H": heads, "d": width // heads}
    launch(query_backward_kernel)[(batch * heads * tiles,)](
        qkv,
        mixed,
        grad,
        logs,
        deltas,
        out,
        sums,
        tiles,
        **shape,
        LAST=left,
        REST=rest(tokens, QUERY_TILES["N"]),
        **QUERY_TILES,
    )
    if filled:
        launch(key_backward_kernel)[(batch * heads * filled,)](
            qkv,
            grad,
            logs,
            deltas,
            out,
            sums,
            0,
            filled,
            **shape,
            N=TILE,
            EACH=TILE,
            WHOLE=True,
            REST=rest(tokens, KEY_TILES["M"]),
            **KEY_TILES,
        )
    if left:
        launch(key_backward_kernel)[(batch * heads,)](
            qkv,
            grad,
            logs,
            deltas,
            out,
            sums,
            filled,
            1,
            **shape,
            N=left,
            EACH=TILE,
            WHOLE=False,
            REST=rest(tokens, FEW_KEYS["M"]),
            **(FEW_KEYS if left == 16 else KEY_TILES),
        )
    return out, sums


@torch.library.triton_op("vitkit::attention_backward", mutates_args={})
def attention_backward_operator(grad: Tensor, qkv: Tensor, mixed: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
    return attention_backward(grad, qkv, mixed, logs, torch.library.wrap_triton)
