"""Position embeddings of every kind in Table 8, and two kinds of fixed sines and cosines.

Absolute kinds are added to the tokens; relative ones become a bias on attention scores. Those of two patches by their
rows and columns apart are in offset_positions.py.

Shapes: B batch, h x w patch grid, S special tokens that have positions (class token, distillation token), P = S + h·w
tokens that have positions, T tokens, D width, H heads, d = D / H.
"""

import math

import torch
from torch import Tensor, nn

from vitkit.model.config import ViTConfig
from vitkit.model.initialise import table
from vitkit.model.offset_positions import Quadratic, Relative2D, RelativeScores2D
from vitkit.model.options import INSIDE_ATTENTION
from vitkit.model.resize_positions import Grid, Interpolation, like, resize_offsets, resize_table, stretch_table
from vitkit.model.shear import shear


class Learned1D(nn.Module):
    """One vector per token, the paper's default."""

    def __init__(self, *, grid: Grid, width: int, special: int):
        super().__init__()
        self.grid, self.special = grid, special
        self.table = table(special + grid[0] * grid[1], width)

    def forward(self) -> Tensor:
        return self.table  # (P, D)

    @torch.no_grad()
    def resize(self, grid: Grid, interpolation: Interpolation) -> None:
        """Interpolate the vectors of the patches in 2-D; special tokens keep theirs."""
        special, patches = self.table[: self.special], self.table[self.special :]
        resized = resize_table(patches, self.grid, grid, interpolation)
        self.table = like(self.table, torch.cat([special, resized]))
        self.grid = grid

    @torch.no_grad()
    def stretch(self, grid: Grid, interpolation: Interpolation) -> None:
        """Interpolate the vectors of the patches in 1-D, row after row; special tokens keep theirs."""
        special, patches = self.table[: self.special], self.table[self.special :]
        stretched = stretch_table(patches, grid[0] * grid[1], interpolation)
        self.table = like(self.table, torch.cat([special, stretched]))
        self.grid = grid


class Learned2D(nn.Module):
    """A table for columns (X) and one for rows (Y), D/2 each, concatenated; special tokens have their own vectors."""

    def __init__(self, *, grid: Grid, width: int, special: int):
        super().__init__()
        self.grid = grid
        self.columns = table(grid[1], width // 2)
        self.rows = table(grid[0], width // 2)
        self.token = table(special, width) if special else None

    def forward(self) -> Tensor:
        h, w = self.grid
        x = self.columns.expand(h, -1, -1)  # (h, w, D/2)
        y = self.rows.unsqueeze(1).expand(-1, w, -1)  # (h, w, D/2)
        patches = torch.cat([x, y], dim=-1).flatten(0, 1)  # (h·w, D)
        return patches if self.token is None else torch.cat([self.token, patches])

    @torch.no_grad()
    def resize(self, grid: Grid, interpolation: Interpolation) -> None:
        h, w = self.grid
        self.rows = like(self.rows, resize_table(self.rows, (h, 1), (grid[0], 1), interpolation))
        self.columns = like(self.columns, resize_table(self.columns, (1, w), (1, grid[1]), interpolation))
        self.grid = grid


def sincos_table(grid: Grid, width: int, special: int) -> Tensor:
    """(P, D) as big_vision and MoCo v3 have it: sin x, cos x, sin y, cos y; zeros for special tokens."""
    y, x = torch.meshgrid(*(torch.arange(side, dtype=torch.float32) for side in grid), indexing="ij")
    quarter = width // 4
    omega = 10_000.0 ** -(torch.arange(quarter, dtype=torch.float32) / max(quarter - 1, 1))
    x, y = x.flatten()[:, None] * omega, y.flatten()[:, None] * omega  # (h·w, D/4)
    table = torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)
    return torch.cat([torch.zeros(special, width), table])


def sinusoid_table(grid: Grid, width: int, special: int) -> Tensor:
    """(P, D) as Vaswani et al. have it: sin(t / 10000^(2i/D)) in column 2i and its cosine in column 2i + 1.

    t counts the tokens from 0, special tokens first, if there are any, and then row after row of patches.
    """
    tokens = torch.arange(special + grid[0] * grid[1], dtype=torch.float64)
    omega = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = tokens[:, None] * omega  # (P, D/2), float64: an angle of thousands would lose its fraction in float32
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1).float()


class SinCos(nn.Module):
    """Fixed sines and cosines of x and y (big_vision's sincos2d): nothing to learn, computed anew for another grid."""

    table: Tensor
    compute = staticmethod(sincos_table)

    def __init__(self, *, grid: Grid, width: int, special: int):
        super().__init__()
        self.special, self.width = special, width
        # Saved with the weights though it could be computed: a file then holds all that the forward pass adds.
        self.register_buffer("table", self.compute(grid, width, special))

    def forward(self) -> Tensor:
        return self.table  # (P, D)

    def resize(self, grid: Grid, interpolation: Interpolation) -> None:
        self.table = self.compute(grid, self.width, self.special).to(self.table)


class SinCos1D(SinCos):
    """The fixed sinusoids of the original Transformer (Vaswani et al.) along the line of tokens."""

    compute = staticmethod(sinusoid_table)


class Relative(nn.Module):
    """1-D relative attention: the query times an embedding of its offset to the key, added to the scores."""

    def __init__(self, *, grid: Grid, width: int, heads: int, class_token: bool):
        super().__init__()
        self.grid, self.class_token, self.heads = grid, class_token, heads
        self.offsets = table(2 * (grid[0] * grid[1] + class_token) - 1, width)

    def forward(self, query: Tensor) -> Tensor:  # (B, H, T, d)
        """Return the bias (B, H, T, T), scaled like the content scores that it is added to."""
        b, _, t, d = query.shape
        offsets = self.offsets.unflatten(1, (self.heads, d)).permute(1, 2, 0) / math.sqrt(d)  # (H, d, 2T-1)
        # One product per head for the whole batch: broadcasting would copy the offsets for each image.
        scores = query.transpose(0, 1).flatten(1, 2) @ offsets  # (H, B·T, 2T-1)
        return shear(scores.unflatten(1, (b, t))).transpose(0, 1)  # (B, H, T, T)

    @torch.no_grad()
    def resize(self, grid: Grid, interpolation: Interpolation) -> None:
        """Interpolate the displacements that offsets stand for, in 2-D."""
        resized = resize_offsets(
            self.offsets, self.grid, grid, class_token=self.class_token, interpolation=interpolation
        )
        self.offsets, self.grid = like(self.offsets, resized), grid

    @torch.no_grad()
    def stretch(self, grid: Grid, interpolation: Interpolation) -> None:
        """Interpolate the offsets in 1-D: what was k tokens apart becomes what is as far in a longer line."""
        rows = 2 * (grid[0] * grid[1] + self.class_token) - 1
        self.offsets, self.grid = like(self.offsets, stretch_table(self.offsets, rows, interpolation)), grid


InsideAttention = Relative | Relative2D | RelativeScores2D | Quadratic
Absolute = Learned1D | Learned2D | SinCos
_ABSOLUTE: dict[str, type[Absolute]] = {"1d": Learned1D, "2d": Learned2D, "sincos": SinCos, "sincos1d": SinCos1D}


def build_positions(config: ViTConfig) -> nn.ModuleList:
    """Build one module per injection: none, one (at the stem, or shared by all layers), or one per layer."""
    if config.positions == "none":
        return nn.ModuleList()
    count = config.depth if config.inject == "every" else 1
    if config.positions in INSIDE_ATTENTION:
        return nn.ModuleList(_inside_attention(config) for _ in range(count))
    kind = _ABSOLUTE[config.positions]
    return nn.ModuleList(
        kind(grid=config.grid, width=config.width, special=config.special_positions) for _ in range(count)
    )


def _inside_attention(config: ViTConfig) -> InsideAttention:
    if config.positions == "relative":
        return Relative(grid=config.grid, width=config.width, heads=config.heads, class_token=config.class_token)
    if config.positions != "relative-2d":
        return Quadratic(grid=config.grid, heads=config.heads, general=config.positions == "quadratic-general")
    kind = Relative2D if config.content else RelativeScores2D
    return kind(grid=config.grid, width=config.width, heads=config.heads)


def skip_tokens(table: Tensor, first: int, skipped: int) -> Tensor:
    """(P, D) → (T, D): zeros for the `skipped` tokens without a position, which follow the first `first` tokens."""
    if not skipped:
        return table
    return torch.cat([table[:first], table.new_zeros(skipped, table.shape[1]), table[first:]])


def fresh_positions(config: ViTConfig, old: nn.ModuleList) -> nn.ModuleList:
    """Return positions as at random initialisation, with the device, dtype and trainability of the old ones."""
    reference = next(old.parameters())
    return build_positions(config).to(reference).requires_grad_(reference.requires_grad)
