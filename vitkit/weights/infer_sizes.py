"""What tensors do not tell: the grid of a position table, the number of heads, the image size.

The caller's word comes first, then the configuration's, then what every such model has; beyond that it is asked for.
"""

from __future__ import annotations

import logging
import math

from vitkit.errors import SizeError, WeightsError
from vitkit.model.variants import heads_by_width
from vitkit.weights.formats import Checkpoint

log = logging.getLogger("vitkit")


def find_grid(checkpoint: Checkpoint, patches: int, stride: int) -> tuple[int, int]:
    """Rows and columns of the position table: as given, as the configuration says, or square."""
    if patches < 1:
        raise WeightsError(f"{checkpoint.origin} has positions for {patches} patches: the table has no room for any.")
    grid = checkpoint.grid
    if grid is None and checkpoint.image is not None:
        grid = checkpoint.image[0] // stride, checkpoint.image[1] // stride
    if grid is not None:
        if grid[0] * grid[1] != patches:
            raise SizeError(
                f"{checkpoint.origin} has positions for {patches} patches, "
                f"not for {grid[0]} x {grid[1]} = {grid[0] * grid[1]}"
            )
        return grid
    side = math.isqrt(patches)
    if side * side == patches:
        return side, side
    pairs = [f"({rows}, {patches // rows})" for rows in range(1, patches + 1) if patches % rows == 0]
    raise SizeError(
        f"{checkpoint.origin} has positions for {patches} patches, which is no square grid, "
        "and does not say how they are laid out.",
        try_="grid=(rows, columns); on the command line --grid ROWS COLUMNS",
        possible=", ".join(pairs),
    )


def find_heads(checkpoint: Checkpoint, width: int, told: int | None) -> int:
    """The number of heads: the caller's word, the configuration's, or the variant table's for this width."""
    if told and checkpoint.heads and told != checkpoint.heads:
        raise WeightsError(f"{checkpoint.origin} says it has {told} heads, not {checkpoint.heads}.")
    heads = checkpoint.heads or told
    if heads is None:
        heads = heads_by_width(width)
        if heads:
            log.info("%s: %d heads taken from its width, %d", checkpoint.origin, heads, width)
    if heads is None:
        raise WeightsError(
            f"{checkpoint.origin} does not tell its number of attention heads, "
            f"and no known model has its width, {width}.",
            try_="vitkit.load(…, heads=N); on the command line, first: vitkit convert IN OUT --to vitkit --heads N",
        )
    if width % heads:
        raise WeightsError(f"{checkpoint.origin} is {width} wide, which {heads} heads cannot share.")
    return heads


def find_image(checkpoint: Checkpoint, patches: int | None, stride: int) -> tuple[int, int]:
    """The image size that a position table is for; without a table, what the caller or the configuration says."""
    if patches is None:
        if checkpoint.grid:
            return checkpoint.grid[0] * stride, checkpoint.grid[1] * stride
        return checkpoint.image or (224 // stride * stride or stride,) * 2
    rows, columns = find_grid(checkpoint, patches, stride)
    return rows * stride, columns * stride
