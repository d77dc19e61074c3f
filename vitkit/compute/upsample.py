"""Class scores of a patch grid → a mask at the image's size: bilinear upsampling and argmax, tile by tile.

The scores of all pixels are never in memory together: 150 classes of a 12-megapixel image would take 7 GB. A tile has
at most TILE scores, so that its three float32 arrays take 96 MiB at most, whatever the size of the image; only the mask
itself, a byte per pixel, grows with it. Tiles are strips of rows, cut by columns too where one row is longer.

Written by hand, because F.interpolate cannot be asked for a part of its result; values equal its own to rounding. Each
pixel goes through the same additions and multiplications in any tile, so that the tiling changes no bit.

Shapes: K classes, h' x w' grid of scores, h x w image.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Size = tuple[int, int]  # height, width
Span = tuple[int, int]  # the first row or column, and the one after the last

TILE = 1 << 23  # scores of a tile: 32 MiB in float32

ToProbabilities = Callable[[Tensor], Tensor]  # (K, rows, columns) scores → probabilities of the classes
OnTile = Callable[[], None]  # called before each tile; what it raises ends the computation


def upsample_mask(scores: Tensor, size: Size, *, tile: int = TILE, on_tile: OnTile | None = None) -> Tensor:
    """Upsample scores (K, h', w') to `size` and return the class with the highest score: (h, w) uint8, on the device.

    Of equal scores the lower class wins.
    """
    mask = torch.empty(size, dtype=torch.uint8, device=scores.device)
    for rows, columns in tiles(len(scores), size, tile, on_tile):
        mask[slice(*rows), slice(*columns)] = class_of(upsample_tile(scores, size, rows, columns))
    return mask


def upsample_mask_and_probability(
    scores: Tensor,
    size: Size,
    to_probabilities: ToProbabilities,
    *,
    tile: int = TILE,
    on_tile: OnTile | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the mask, and the probability of each pixel's class: (h, w) uint8 and (h, w) float32.

    `to_probabilities` is `softmax` for logits, and `shares` for scores that are sums of probabilities.
    """
    mask = torch.empty(size, dtype=torch.uint8, device=scores.device)
    probability = torch.empty(size, dtype=torch.float32, device=scores.device)
    for rows, columns in tiles(len(scores), size, tile, on_tile):
        upsampled = upsample_tile(scores, size, rows, columns)
        pixels = slice(*rows), slice(*columns)
        mask[pixels], probability[pixels] = class_and_probability(upsampled, to_probabilities)
    return mask, probability


def class_and_probability(scores: Tensor, to_probabilities: ToProbabilities) -> tuple[Tensor, Tensor]:
    """Return the class of each pixel (rows, columns), and its probability."""
    chosen = class_of(scores)
    return chosen, to_probabilities(scores).gather(0, chosen[None])[0]


def class_of(scores: Tensor) -> Tensor:
    """Return the class with the highest score, the lowest of equal ones: (K, …) → (…).

    `max` has what `argmax` has, and takes a CPU a quarter of the time for 11 classes, a tenth for two.
    """
    return scores.max(0).indices


def softmax(scores: Tensor) -> Tensor:
    """Return the probabilities of logits (K, …)."""
    return scores.softmax(0)


def shares(scores: Tensor) -> Tensor:
    """Return scores (K, …) that are not negative, divided by their sum."""
    return scores / scores.sum(0, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)


def tiles(classes: int, size: Size, tile: int = TILE, on_tile: OnTile | None = None) -> Iterator[tuple[Span, Span]]:
    """Yield the rows and columns of tiles of at most `tile` scores, or of one pixel, which cover an image."""
    height, width = size
    columns = max(min(width, tile // classes), 1)
    rows = max(min(height, tile // (classes * columns)), 1)
    for top in range(0, height, rows):
        for left in range(0, width, columns):
            if on_tile is not None:
                on_tile()
            yield (top, min(top + rows, height)), (left, min(left + columns, width))


def upsample_tile(scores: Tensor, size: Size, rows: Span, columns: Span) -> Tensor:
    """Return these rows and columns of scores (K, h', w') upsampled to `size`: (K, rows, columns) float32."""
    above, below, down = _neighbours(scores.shape[1], size[0], rows, scores.device)
    left, right, across = _neighbours(scores.shape[2], size[1], columns, scores.device)
    between = _blend(scores[:, above].float(), scores[:, below].float(), down[:, None])  # (K, rows, w')
    return _blend(between[:, :, left], between[:, :, right], across)


def _neighbours(cells: int, pixels: int, span: Span, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return the two cells that each pixel of the span lies between, and how far it is from the first, 0 to 1.

    The centre of pixel i is at (i + 1/2) · cells / pixels - 1/2, in float32, as in F.interpolate without align_corners.
    """
    centres = torch.arange(*span, dtype=torch.float32, device=device) + 0.5
    # the quotient of float32 numbers, as torch computes it
    scale = torch.tensor(cells, dtype=torch.float32) / torch.tensor(pixels, dtype=torch.float32)
    position = (centres * scale.to(device) - 0.5).clamp_min(0)
    first = position.long().clamp_max(cells - 1)
    return first, (first + 1).clamp_max(cells - 1), (position - first).clamp(0, 1)


def _blend(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """Return first · (1 - weight) + second · weight, in the memory of both."""
    return first.mul_(1 - weight).add_(second.mul_(weight))
