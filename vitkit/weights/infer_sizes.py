"""Infer what the shapes of tensors leave open: grid, heads, GELU, image size.

The caller's argument comes first, then the configuration file, then the variant table; otherwise an error asks for it.
"""

import logging
import math

from vitkit.errors import SizeError, WeightsError
from vitkit.model.options import Gelu
from vitkit.model.variants import heads_by_width
from vitkit.weights.formats import Checkpoint

log = logging.getLogger("vitkit")


def infer_grid(checkpoint: Checkpoint, patches: int, stride: int) -> tuple[int, int]:
    """Return the rows and columns of the position table: the caller's, the configuration's, or a square."""
    if patches < 1:
        raise WeightsError(f"{checkpoint.origin} has positions for {patches} patches, but a model needs at least one.")
    grid = checkpoint.grid
    if grid is None and checkpoint.image is not None:
        grid = checkpoint.image[0] // stride, checkpoint.image[1] // stride
    if grid is not None:
        if grid[0] * grid[1] != patches:
            raise SizeError(
                f"{checkpoint.origin} has positions for {patches} patches, "
                f"not for {grid[0]} x {grid[1]} = {grid[0] * grid[1]}.",
                try_="grid=(rows, columns), where the configuration has another size; on the command line --grid",
            )
        return grid
    side = math.isqrt(patches)
    if side * side == patches:
        return side, side
    pairs = [f"({rows}, {patches // rows})" for rows in range(1, patches + 1) if patches % rows == 0]
    raise SizeError(
        f"{checkpoint.origin} has positions for {patches} patches, which is not a square grid, "
        "and no rows and columns.",
        try_="grid=(rows, columns); on the command line --grid ROWS COLUMNS",
        possible=", ".join(pairs),
    )


def split_positions(checkpoint: Checkpoint, rows: int, stride: int, *, special: int) -> int:
    """Return how many rows of a position table are patches: all, or all but those of `special` tokens in front.

    The image size tells, or else a square: no square is one or two more than another.
    """
    grid = checkpoint.grid
    if grid is None and checkpoint.image is not None:
        grid = checkpoint.image[0] // stride, checkpoint.image[1] // stride
    candidates = (rows - special, rows)
    sized = [patches for patches in candidates if grid and grid[0] * grid[1] == patches]
    square = [patches for patches in candidates if math.isqrt(patches) ** 2 == patches > 0]
    return [*sized, *square, rows - special][0]  # the caller's next step says what is wrong with one of another size


def infer_heads(checkpoint: Checkpoint, width: int, configured: int | None, *, swiglu: bool = False) -> int:
    """Return the number of heads: the caller's, the configuration's, or the variant table's for this width."""
    if configured and checkpoint.heads and configured != checkpoint.heads:
        raise WeightsError(f"the configuration of {checkpoint.origin} has {configured} heads, not {checkpoint.heads}.")
    heads = checkpoint.heads or configured
    if heads is None:
        heads = heads_by_width(width, swiglu=swiglu)
        if heads:
            log.info("%s: %d heads inferred from its width, %d", checkpoint.origin, heads, width)
    if heads is None:
        raise WeightsError(
            f"the number of attention heads of {checkpoint.origin} is unknown: it has no configuration, "
            f"and no known model has its width, {width}.",
            try_="vitkit.load(…, heads=N); on the command line, first: vitkit convert IN OUT --to vitkit --heads N",
        )
    if width % heads:
        raise WeightsError(f"{checkpoint.origin} has the width {width}, which {heads} heads do not divide.")
    return heads


def infer_gelu(checkpoint: Checkpoint, configured: Gelu | None) -> Gelu:
    """Return the GELU of a kind of model that exists with several: the configuration's or the caller's."""
    gelu = configured or checkpoint.gelu
    if gelu is None:
        raise WeightsError(
            f"the GELU of {checkpoint.origin} is unknown: it has no configuration, and CLIP models exist with several.",
            try_="vitkit.load(…, gelu='quick') for OpenAI's, MetaCLIP's and DFN's weights, gelu='exact' for LAION's; "
            "on the command line, first: vitkit convert IN OUT --to vitkit --gelu quick",
        )
    return gelu


def infer_image(checkpoint: Checkpoint, patches: int | None, stride: int) -> tuple[int, int]:
    """Return the image size of the position table; without a table, the caller's or the configuration's."""
    if patches is None:
        if checkpoint.grid:
            return checkpoint.grid[0] * stride, checkpoint.grid[1] * stride
        return checkpoint.image or (224 // stride * stride or stride,) * 2
    rows, columns = infer_grid(checkpoint, patches, stride)
    return rows * stride, columns * stride
