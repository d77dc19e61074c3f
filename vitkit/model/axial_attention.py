"""Position-sensitive axial attention (Wang et al. 2020, Axial-DeepLab): along each column of the map, then each row.

Eq. 4: y_t = Σ_s softmax_s(q_t·k_s + q_t·r^q_{s-t} + k_s·r^k_{s-t}) (v_s + r^v_{s-t}), queries and keys half as wide as
values, vectors r shared by the heads. Scores are divided by √d; the authors' code normalises scores, projections and
outputs by BatchNorm instead. Where the convolution had a stride, 2x2 pixels are averaged after the second axis.

Shapes: B batch, C channels, h x w feature map, H heads, L lines of T pixels (columns or rows), d channels of a head.
"""

import math

import torch
from torch import Tensor, nn

from vitkit.model.attention import attention_weights
from vitkit.model.capture import Seen, keep
from vitkit.model.feature_map_attention import (
    FeatureMapAttention,
    OffsetTables,
    offset_table,
    split,
    strided_average_pool,
)
from vitkit.model.initialise import linear
from vitkit.model.resize_positions import Grid


class AxialAttention(FeatureMapAttention):
    captures = ("columns/attention", "rows/attention")

    def __init__(self, *, width: int, heads: int, grid: Grid, stride: int):
        super().__init__(grid, heads)
        self.stride = stride
        self.column = LineAttention(width=width, heads=heads, grid=grid, axis=0)
        self.row = LineAttention(width=width, heads=heads, grid=grid, axis=1)

    def forward(self, x: Tensor, seen: Seen, name: str) -> Tensor:  # (B, C, h, w)
        columns, weights = self.column(x.permute(0, 3, 2, 1))  # (B, w, h, C)
        keep(seen, f"{name}/columns/attention", weights)
        rows, weights = self.row(columns.transpose(1, 2))  # (B, h, w, C)
        keep(seen, f"{name}/rows/attention", weights)
        return strided_average_pool(rows.permute(0, 3, 1, 2), self.stride)


class LineAttention(nn.Module):
    """Attention within each line of pixels: (B, L, T, C) → the same, and the weights (B, L, H, T, T)."""

    def __init__(self, *, width: int, heads: int, grid: Grid, axis: int):
        super().__init__()
        self.heads, self.channels = heads, (width // 2, width)
        self.qkv = linear(width, 2 * width, bias=False)
        self.positions = LineOffsets(grid, width // heads, axis)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = split(self.qkv(x), self.heads, self.channels)  # (B, L, H, T, ·) each
        to_query, to_key, to_value = self.positions(x.shape[2])  # (T, T, ·) each, by query and key
        scores = torch.einsum("blhtd,tsd->blhts", query, to_query) + torch.einsum("blhsd,tsd->blhts", key, to_key)
        weights = attention_weights(query, key, scores / math.sqrt(query.shape[-1]))
        mixed = weights @ value + torch.einsum("blhts,tsd->blhtd", weights, to_value)
        return mixed.transpose(2, 3).flatten(3), weights


class LineOffsets(OffsetTables):
    """The vectors r^q, r^k and r^v of each offset along one axis."""

    def __init__(self, grid: Grid, width: int, axis: int):
        super().__init__()
        self.axes = {"query": axis, "key": axis, "value": axis}
        rows = 2 * grid[axis] - 1
        self.query, self.key, self.value = (offset_table(rows, part) for part in (width // 2, width // 2, width))

    def forward(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return each table as (T, T, ·): the vector of the offset from a query, first, to a key."""
        line = torch.arange(length, device=self.query.device)
        offset = line - line[:, None] + length - 1
        return self.query[offset], self.key[offset], self.value[offset]
