"""Rotary positions (RoPE) in two dimensions: queries and keys of patches are turned by angles of their row and column.

The product of a turned query and a turned key depends on their displacement only. Half of the pairs of a head turn by
the row, half by the column. Special tokens have no place in the image and are not turned.

Shapes: B batch, h x w patch grid, N = h·w patches, T tokens, H heads, d width of a head.
"""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from vitkit.model.config import ViTConfig
from vitkit.model.options import Rotary, RotaryLayout
from vitkit.model.resize_positions import Grid


class RotaryPositions(nn.Module):
    """Tables of sines and cosines: constants of the model's grid, computed anew for another, not saved."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.coordinates, self.base, self.layout = config.rotary, config.rotary_base, config.rotary_layout
        self.depth = config.width // config.heads
        for name, table in self._tables(config.grid).items():
            self.register_buffer(name, table, persistent=False)

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Turn the last N of the T tokens: (B, H, T, d) each → the same."""
        return self.turn(query), self.turn(key)

    def resize(self, grid: Grid) -> None:
        for name, table in self._tables(grid).items():
            setattr(self, name, table.to(getattr(self, name)))

    def turn(self, x: Tensor) -> Tensor:
        return turn(x, self.cos, self.sin, self.layout)

    def _apply(self, convert: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the tables with the model, but keep them in float32 if it is cast to bf16: angles would change."""
        tables = {name: getattr(self, name) for name in ("cos", "sin")}
        super()._apply(convert, recurse)
        for name, table in tables.items():
            converted = getattr(self, name)
            if converted.itemsize < table.itemsize:
                setattr(self, name, table.to(converted.device, torch.float32))
        return self

    def _tables(self, grid: Grid) -> dict[str, Tensor]:
        angles = rotary_angles(grid, self.depth, self.coordinates, self.base)  # (N, d/2)
        both = angles.repeat(1, 2) if self.layout == "half" else angles.repeat_interleave(2, dim=1)  # (N, d)
        return {"cos": both.cos(), "sin": both.sin()}


def rotary_angles(grid: Grid, depth: int, coordinates: Rotary, base: float) -> Tensor:
    """Return the angle of every pair of a head (N, d/2): by the row for the first half of them, then by the column.

    "centred" coordinates are the centres of patches on a scale from -1 to 1 over each side of the image, times 2π
    (DINOv3: an angle means a share of the image, at any size). "index" counts rows and columns from 0.
    """
    # On the CPU, since models are built on the meta device before their weights are loaded, and these are no weights.
    rows, columns = (torch.arange(side, dtype=torch.float32, device="cpu") for side in grid)
    if coordinates == "centred":
        rows, columns = (2 * math.pi * (2 * (line + 0.5) / len(line) - 1) for line in (rows, columns))
    # float32, as in transformers; DINOv3 was trained with these periods rounded to bf16
    periods = base ** (torch.arange(depth // 4, dtype=torch.float32, device="cpu") * 4 / depth)  # (d/4,)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.cat([y.flatten()[:, None] / periods, x.flatten()[:, None] / periods], dim=1)


def turn(x: Tensor, cos: Tensor, sin: Tensor, layout: RotaryLayout) -> Tensor:
    """Turn the last N of the T tokens by tables (N, d): (…, T, d) → the same."""
    patches = cos.shape[0]
    special, x = x[..., :-patches, :], x[..., -patches:, :]
    turned = x * cos.to(x) + quarter_turn(x, layout) * sin.to(x)
    return torch.cat([special, turned], dim=-2)


def quarter_turn(x: Tensor, layout: RotaryLayout) -> Tensor:
    """Turn every pair (a, b) of (…, d) by a quarter: (-b, a). Pairs are i with i + d/2, or 2i with 2i + 1."""
    if layout == "half":
        a, b = x.chunk(2, dim=-1)
        return torch.cat([-b, a], dim=-1)
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([-b, a], dim=-1).flatten(-2)
