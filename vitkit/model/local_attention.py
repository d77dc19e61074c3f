"""Stand-alone local self-attention (Ramachandran et al. 2019): each pixel attends to the k x k pixels around it.

softmax(q·k + q·r) over the neighbourhood, where half of r is learned for the offset in rows and half for that in
columns. The paper leaves three things open. Here, neighbours outside of the map get no weight, each head has vectors
of its own, and scores are divided by √d as elsewhere. Where the convolution had a stride, 2x2 pixels are averaged
after attention (section 3.1). Over a small map, all pairs of pixels are computed, which is faster, and gives the same.

Shapes: B batch, C channels, h x w feature map, N = h·w, K = k·k neighbours, H heads, d = C / H.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.model.attention import attention_weights
from vitkit.model.capture import Seen, keep
from vitkit.model.feature_map_attention import (
    FeatureMapAttention,
    as_map,
    as_tokens,
    offset_table,
    split,
    strided_average_pool,
)
from vitkit.model.initialise import linear
from vitkit.model.offset_positions import add_rows_and_columns, pairwise_offsets
from vitkit.model.resize_positions import Grid, Interpolation
from vitkit.model.shear import shear
from vitkit.model.spatial_attention import takes_all_pairs


class LocalAttention(FeatureMapAttention):
    def __init__(self, *, width: int, heads: int, grid: Grid, stride: int, window: int):
        super().__init__(grid, heads)
        self.stride, self.window = stride, window
        self.qkv = linear(width, 3 * width, bias=False)
        self.rows = offset_table(window, width // 2)
        self.columns = offset_table(window, width // 2)

    def forward(self, x: Tensor, seen: Seen, name: str) -> Tensor:  # (B, C, h, w)
        grid = (x.shape[2], x.shape[3])  # offsets are bounded by the window: any map will do
        query, key, value = split(self.qkv(as_tokens(x)), self.heads, (x.shape[1], x.shape[1]))  # (B, H, N, d) each
        if f"{name}/attention" not in seen and takes_all_pairs(query.shape[2], self.window):
            bias = self.scores_of_pairs(query, grid)
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
            return strided_average_pool(as_map(mixed, grid), self.stride)
        bias = self.offset_scores(query) + self.outside(grid).to(query)
        keys, values = (self.neighbours(as_map(part, grid)) for part in (key, value))  # (B, H, N, K, d)
        weights = attention_weights(query.unsqueeze(3), keys, bias.unsqueeze(3))  # (B, H, N, 1, K)
        keep(seen, f"{name}/attention", weights.squeeze(3))
        return strided_average_pool(as_map((weights @ values).squeeze(3), grid), self.stride)

    def offset_scores(self, query: Tensor) -> Tensor:
        """q · r / √d for each offset in the window, rows first: (B, H, N, d) → (B, H, N, K)."""
        rows, columns = (table.unflatten(1, (self.heads, -1)) for table in (self.rows, self.columns))  # (k, H, d/2)
        k = self.window
        offsets = torch.cat([rows[:, None].expand(-1, k, -1, -1), columns[None].expand(k, -1, -1, -1)], dim=-1)
        return torch.einsum("bhnd,khd->bhnk", query / math.sqrt(query.shape[-1]), offsets.flatten(0, 1))

    def scores_of_pairs(self, query: Tensor, grid: Grid) -> Tensor:
        """q · r / √d for all pairs of pixels, -inf for those outside of the window: (B, H, N, d) → (B, H, N, N)."""
        (h, w), radius = grid, self.window // 2
        by_row, by_column = (query / math.sqrt(query.shape[-1])).unflatten(2, grid).chunk(2, dim=-1)
        down = shear(by_row.transpose(2, 3) @ self.all_offsets(self.rows, h)).transpose(2, 3)  # (B, H, h, w, h)
        right = shear(by_column @ self.all_offsets(self.columns, w))  # (B, H, h, w, w)
        down = down.masked_fill((pairwise_offsets(h, query).abs() > radius)[:, None], -math.inf)
        right = right.masked_fill(pairwise_offsets(w, query).abs() > radius, -math.inf)
        return add_rows_and_columns(down[..., :, None], right[..., None, :])

    def all_offsets(self, table: Tensor, side: int) -> Tensor:
        """Return the vectors of all offsets along a side, 0 beyond the window: (k, H·d/2) → (H, 1, d/2, 2·side-1)."""
        beyond = side - 1 - self.window // 2
        return F.pad(table.T, (beyond, beyond)).unflatten(0, (self.heads, 1, -1))  # a negative number takes away

    def neighbours(self, x: Tensor) -> Tensor:
        """(B, H·d, h, w) → (B, H, N, K, d), zeros outside of the map."""
        r = self.window // 2
        windows = F.pad(x, (r, r, r, r)).unfold(2, self.window, 1).unfold(3, self.window, 1)  # (B, H·d, h, w, k, k)
        # one copy, of which keys and values are views in the layout that a product of matrices reads
        windows = windows.unflatten(1, (self.heads, -1)).permute(0, 1, 3, 4, 2, 5, 6).flatten(5)  # (B, H, h, w, d, K)
        return windows.flatten(2, 3).transpose(-2, -1)

    def outside(self, grid: Grid) -> Tensor:
        """Return the scores that leave out neighbours outside of the map: 0 or -inf, (N, K)."""
        inside = F.unfold(self.rows.new_ones(1, 1, *grid), self.window, padding=self.window // 2)[0].T
        return torch.zeros_like(inside).masked_fill(inside == 0, -math.inf)

    def resize(self, grid: Grid, interpolation: Interpolation, *, fresh: bool) -> None:
        """Change the map; the offsets in the window stay as they are, or are re-initialised if `fresh`."""
        super().resize(grid, interpolation, fresh=fresh)
        if fresh:
            for table in (self.rows, self.columns):
                table.data.copy_(offset_table(*table.shape))
