"""Tables of position embeddings for another patch grid: interpolated in 2-D (section 3.2) or stretched as a line.

Shapes: h x w patch grid, N = h·w patches, T tokens (the class token first, if there is one), D width.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data.resize import resize
from vitkit.errors import ConfigError, SizeError
from vitkit.model.config import TokenConfig
from vitkit.model.options import PositionTransfer

Grid = tuple[int, int]  # rows, columns
Interpolation = Literal["paper", "bicubic", "bicubic-no-antialias", "dino"]
DINO_OFFSET = 0.1  # patches that DINO's code adds to a side of the new grid against rounding; it moves every sample
LEARNED = ("1d", "2d", "relative", "relative-2d")  # for each place in a grid; the other kinds are computed, or none
ANY_GRID = ("quadratic", "quadratic-general")  # learned, in patches, which mean the same in any grid
DONE: dict[PositionTransfer, str] = {
    "interpolate": "interpolated in 2-D",
    "stretch": "stretched in 1-D",
    "keep": "kept",
    "fresh": "re-initialised",
}


def resize_table(table: Tensor, grid: Grid, target: Grid, interpolation: Interpolation = "paper") -> Tensor:
    """(h·w, D) → (h'·w', D) by 2-D interpolation.

    "paper" is Google's scipy zoom of order 1: bilinear, corners kept in place. "bicubic" is timm's, and that of DINOv2
    with registers: antialiased, edges kept in place. "bicubic-no-antialias" is the same without the wider filter of a
    smaller grid, as transformers resizes the tables of DINOv2, MAE, I-JEPA and DeiT. "dino" is the latter with the
    offset in DINO's and DINOv2's own code. They agree on neither values nor extent, so weights must be resized the way
    they were trained.
    """
    if interpolation not in get_args(Interpolation):
        raise ConfigError(
            f"interpolation={interpolation!r} is not known", choose_from=", ".join(get_args(Interpolation))
        )
    if grid == target:
        return table.clone()
    image = table.T.reshape(1, -1, *grid)  # (1, D, h, w)
    if interpolation == "paper":
        # float64: sampling points are fractions of the grid, and scipy computes them in double precision
        resized = F.interpolate(image.double(), target, mode="bilinear", align_corners=True)
    elif interpolation == "bicubic":
        resized = resize(image.float(), target, "bicubic")
    elif interpolation == "bicubic-no-antialias":
        resized = F.interpolate(image.float(), target, mode="bicubic")
    else:
        scale = [(new + DINO_OFFSET) / old for new, old in zip(target, grid, strict=True)]
        resized = F.interpolate(image.float(), scale_factor=scale, mode="bicubic")
    return resized.to(table.dtype).flatten(2)[0].T.contiguous()  # (h'·w', D)


def stretch_table(table: Tensor, rows: int, interpolation: Interpolation = "paper") -> Tensor:
    """(N, D) → (rows, D) by 1-D interpolation, as if the patches were a line: rows of patches are mixed."""
    return resize_table(table, (1, len(table)), (1, rows), interpolation)


def resize_offsets(
    table: Tensor, grid: Grid, target: Grid, *, class_token: bool, interpolation: Interpolation = "paper"
) -> Tensor:
    """(2T-1, D), one row per offset on the line of tokens → (2T'-1, D), by 2-D interpolation of displacements.

    Swin and BEiT interpolate a table of displacements (rows down, columns right). On a line, an offset o stands for all
    pairs of tokens that are o apart, whose displacements differ: in 14 columns, 13 is "13 to the right" and "1 down, 1
    to the left". So each pair of the new grid takes the embedding of its displacement, interpolated in the old grid,
    and each new offset the mean over its pairs. At the same grid, that is the table itself.
    """
    h, w = grid
    centre, tokens = len(table) // 2, target[0] * target[1] + class_token
    down, right = _displacements(grid)
    between = table[centre + down * w + right]  # ((2h-1)·(2w-1), D)
    resized = resize_table(between, (2 * h - 1, 2 * w - 1), (2 * target[0] - 1, 2 * target[1] - 1), interpolation)
    down, right = _displacements(target)
    offsets = [down * target[1] + right]
    pairs = [(target[0] - down.abs()) * (target[1] - right.abs())]
    rows = [resized]
    if class_token:  # its offsets to the patches are 1, 2, … N; from the patches, the same below zero; 0 to itself
        patches = torch.arange(1, tokens)
        offsets += [patches, -patches, torch.zeros(1, dtype=torch.long)]
        pairs += [torch.ones(2 * tokens - 1, dtype=torch.long)]
        after, before = table[centre + 1 :], table[:centre].flip(0)
        rows += [resize_table(side, grid, target, interpolation) for side in (after, before)]
        rows += [table[centre : centre + 1]]
    index = torch.cat(offsets) + tokens - 1
    weights = torch.cat(pairs).double()[:, None].to(table.device)
    index = index.to(table.device)
    sums = torch.zeros(2 * tokens - 1, table.shape[1], dtype=torch.float64, device=table.device)
    counts = sums.new_zeros(2 * tokens - 1, 1)
    sums.index_add_(0, index, torch.cat(rows).double() * weights)
    counts.index_add_(0, index, weights)
    return (sums / counts).to(table.dtype)


def _displacements(grid: Grid) -> tuple[Tensor, Tensor]:
    """Return all displacements in a grid, ((2h-1)·(2w-1),) each: rows down and columns to the right."""
    down, right = torch.meshgrid(*(torch.arange(1 - side, side) for side in grid), indexing="ij")
    return down.flatten(), right.flatten()


def like(old: nn.Parameter, table: Tensor) -> nn.Parameter:
    """Return the table as a parameter that is frozen if the old one is."""
    return nn.Parameter(table, requires_grad=old.requires_grad)


def check_transfer(config: TokenConfig, target: Grid, positions: PositionTransfer) -> None:
    """Raise an error where the positions of a model cannot be taken over to the grid `target` in the way asked for."""
    if positions == "interpolate" or (config.positions in ANY_GRID and positions != "stretch"):
        return
    if config.positions not in LEARNED:
        without = "has none" if config.rotary == "none" else "has rotary positions, computed for any grid"
        actual = without if config.positions == "none" else f"has {config.positions}, computed for any grid"
        raise ConfigError(
            f"only learned positions can be {DONE[positions]}, and this model {actual}",
            try_="load_positions=interpolate, the default",
        )
    if positions == "keep" and config.grid != target:
        raise SizeError(
            f"the positions cannot be kept: the weights have them for {_text(config.grid)} patches, and the image size "
            f"has {_text(target)}",
            try_=f"the weights' own image size, {_text(config.image)}, or interpolate, the default",
        )
    if positions == "stretch" and config.positions in ("2d", "relative-2d"):
        kind = "2-D" if config.positions == "2d" else "2-D relative"
        raise ConfigError(
            f"{kind} positions cannot be stretched in 1-D: they are a table of rows and one of columns",
            try_="interpolate, the default, which stretches each of them along its own side",
        )


def describe_transfer(config: TokenConfig, before: Grid, positions: PositionTransfer) -> str:
    """Return what happened to the positions of a model that now has `config`, in a few words."""
    grids = _text(config.grid) if before == config.grid else f"{_text(before)} → {_text(config.grid)}"
    if (before == config.grid or config.positions in ANY_GRID) and positions != "fresh":
        return f"positions kept ({grids})"
    if config.positions == "none":
        return f"rotary positions computed anew ({grids})" if config.rotary != "none" else f"no positions ({grids})"
    return f"positions {DONE[positions] if config.positions in LEARNED + ANY_GRID else 'computed anew'} ({grids})"


def _text(sides: tuple[int, int]) -> str:
    return f"{sides[0]} x {sides[1]}"
