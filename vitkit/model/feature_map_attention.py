"""The base of a ResNet's attention layers: a feature map in, a feature map out, weights on request.

Shapes: B batch, C channels, h x w feature map, N = h·w, H heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.capture import Seen
from vitkit.model.resize_positions import Grid, Interpolation, stretch_table


class FeatureMapAttention(nn.Module):
    """A layer with the place of a 3x3 convolution: (B, C, h, w) → (B, C, h / stride, w / stride)."""

    captures: tuple[str, ...] = ("attention",)  # what `seen` may ask for, below the name of the unit

    def __init__(self, grid: Grid, heads: int):
        super().__init__()
        self.grid, self.heads = grid, heads  # the rows and columns that attention runs over

    def forward(self, x: Tensor, seen: Seen, name: str) -> Tensor:
        raise NotImplementedError

    def resize(self, grid: Grid, interpolation: Interpolation, *, fresh: bool) -> None:
        """Change the map; tables of offsets are interpolated, or re-initialised if `fresh`."""
        for module in self.modules():
            if isinstance(module, OffsetTables):
                module.resize(self.grid, grid, interpolation, fresh=fresh)
        self.grid = grid


class OffsetTables(nn.Module):
    """Relative position embeddings: learned vectors for the offsets key - query along a side, 1 - side to side - 1.

    A subclass names its tables and the axis of each: 0 for offsets down the rows, 1 for those along the columns.
    """

    axes: dict[str, int]

    @torch.no_grad()
    def resize(self, old: Grid, new: Grid, interpolation: Interpolation, *, fresh: bool) -> None:
        for name, axis in self.axes.items():
            table = getattr(self, name)
            rows = 2 * new[axis] - 1
            if fresh:
                resized = offset_table(rows, table.shape[1]).to(table)
            elif old[axis] == new[axis]:
                continue
            else:
                resized = stretch_table(table, rows, interpolation)
            setattr(self, name, nn.Parameter(resized, requires_grad=table.requires_grad))


def offset_table(rows: int, width: int) -> nn.Parameter:
    """Return random vectors whose product with a query of unit variance has unit variance (BoTNet's code)."""
    return nn.Parameter(nn.init.normal_(torch.empty(rows, width), std=width**-0.5))


def as_tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)  # (B, C, h, w) → (B, N, C)


def as_map(mixed: Tensor, grid: Grid) -> Tensor:
    """(B, H, N, d) → (B, H·d, h, w): the heads side by side."""
    return mixed.transpose(2, 3).flatten(1, 2).unflatten(2, grid)


def split(projected: Tensor, heads: int, channels: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """(B, N, 2·keys + values) → query, key and value: (B, H, N, channels / H) each."""
    parts = projected.split([channels[0], channels[0], channels[1]], dim=-1)
    query, key, value = (part.unflatten(-1, (heads, -1)).transpose(-2, -3) for part in parts)
    return query, key, value


def strided_average_pool(x: Tensor, stride: int) -> Tensor:
    """Average 2x2 pixels where the convolution that is replaced had a stride; a lone last row or column by itself."""
    return F.avg_pool2d(x, stride, stride, ceil_mode=True) if stride > 1 else x
