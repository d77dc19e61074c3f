"""Large images in overlapping windows: where they lie, how much each counts at a pixel, and their common mask.

A model sees an image squashed to its input. An image much larger than those of training would lose what the model has
learned to see, so that it is cut into windows of the training images' size; neighbours share a quarter of their side or
more. Where windows overlap, their scores are averaged, with weights that fall to nothing at a window's edge: there a
model knows least, and no seam is seen.

The scores of all windows are never in memory together. The image is computed from the top in bands of windows, and a
band's scores, on the model's own small grid, are dropped below it. What is upsampled at a time is a tile
(`vitkit.compute.upsample`).

Shapes: K classes, h' x w' grid of scores, h x w image.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from vitkit.compute.upsample import (
    TILE,
    OnTile,
    Size,
    Span,
    ToProbabilities,
    class_and_probability,
    class_of,
    tiles,
    upsample_tile,
)

MANY = 4  # times the pixels of the training images: a larger image is cut
OVERLAP = 1 / 4  # of a window's side, at least, shared with the next

Band = Sequence[Tensor]  # scores (K, h', w') of the windows of a row, from the left
ComputeBand = Callable[[Span, Sequence[Span]], Band]  # of these rows of the image, and the columns of each window


def is_large(size: Size, trained_size: Size | None) -> bool:
    """Return whether an image of this size is cut into windows; without the size of the training images, none is."""
    if trained_size is None:
        return False
    return size[0] * size[1] > MANY * trained_size[0] * trained_size[1]


def window_grid(size: Size, window: Size) -> tuple[list[Span], list[Span]]:
    """Return the rows and the columns of windows of an image of this size."""
    return window_spans(size[0], window[0]), window_spans(size[1], window[1])


def window_count(size: Size, window: Size | None) -> int:
    """Return the number of windows of an image of this size: 1 for one that is not large."""
    if window is None or not is_large(size, window):
        return 1
    rows, columns = window_grid(size, window)
    return len(rows) * len(columns)


def window_spans(length: int, window: int) -> list[Span]:
    """Return where windows begin and end along a side: as few as overlap by a quarter, evenly spread."""
    if length <= window:
        return [(0, length)]
    room, step = length - window, max(int(window * (1 - OVERLAP)), 1)
    count = -(-room // step) + 1
    starts = [round(number * room / (count - 1)) for number in range(count)]
    return [(start, start + window) for start in starts]


def window_weights(length: int, positions: Tensor) -> Tensor:
    """Return how much a window of this length counts at pixels along it: 1 inside, falling over the overlap."""
    centres = positions.float() + 0.5
    from_edge = torch.minimum(centres, length - centres)
    return (from_edge / (OVERLAP * length)).clamp_max(1)


def mask_of_windows(
    size: Size,
    window: Size,
    compute: ComputeBand,
    mask: Tensor,
    probability: Tensor | None,
    to_probabilities: ToProbabilities | None,
    *,
    tile: int = TILE,
    on_tile: OnTile | None = None,
) -> None:
    """Fill the mask (h, w), and the probability of each pixel's class, from the averaged scores of windows."""
    rows, columns = window_grid(size, window)
    bands: dict[int, Band] = {}
    for top, bottom in _constant_segments(rows):
        in_rows = [number for number, span in enumerate(rows) if span[0] < bottom and span[1] > top]
        bands = {number: bands.get(number) or compute(rows[number], columns) for number in in_rows}
        for left, right in _constant_segments(columns):
            in_columns = [number for number, span in enumerate(columns) if span[0] < right and span[1] > left]
            covering = [(bands[row][column], rows[row], columns[column]) for row in in_rows for column in in_columns]
            classes = len(covering[0][0])
            for (first, last), (start, stop) in tiles(classes, (bottom - top, right - left), tile, on_tile):
                area = (top + first, top + last), (left + start, left + stop)
                scores = _average(covering, *area)
                pixels = slice(*area[0]), slice(*area[1])
                if probability is None or to_probabilities is None:
                    mask[pixels] = class_of(scores)
                else:
                    mask[pixels], probability[pixels] = class_and_probability(scores, to_probabilities)


def _constant_segments(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the segments between the ends of windows: in each, the same windows cover every pixel."""
    ends = sorted({end for span in spans for end in span})
    return pairwise(ends)


def _average(covering: Sequence[tuple[Tensor, Span, Span]], rows: Span, columns: Span) -> Tensor:
    """Return the weighted mean of the scores of windows at these pixels of the image: (K, rows, columns)."""
    total: Tensor | None = None
    weights: Tensor | None = None
    for scores, window_rows, window_columns in covering:
        height, width = window_rows[1] - window_rows[0], window_columns[1] - window_columns[0]
        own_rows, own_columns = _shifted(rows, window_rows[0]), _shifted(columns, window_columns[0])
        weight = window_weights(height, torch.arange(*own_rows, device=scores.device))[:, None] * window_weights(
            width, torch.arange(*own_columns, device=scores.device)
        )
        upsampled = upsample_tile(scores, (height, width), own_rows, own_columns).mul_(weight)
        total = upsampled if total is None else total.add_(upsampled)
        weights = weight if weights is None else weights.add_(weight)
    assert total is not None
    assert weights is not None
    return total.div_(weights)


def _shifted(span: Span, by: int) -> Span:
    return span[0] - by, span[1] - by
