"""The preprocessing as tensor arithmetic that a graph can hold, for images of any size.

Antialiased resizing is linear in the pixels: each row of the result is a weighted sum of rows of the image, and so is
each column. So the whole geometry, trimming, resizing, cropping and padding, becomes two matrices that are computed
from the image's sides, and two products. No runtime's own resize is involved, and all give the same result.

It equals `vitkit.data.transforms.EvalTransform`, as a test holds. There, geometry is computed in Python's float64 and
weights in torch's float32, and so they are here.

Shapes: B images, C channels, (height, width) of the images, (rows, columns) of the model's input.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vitkit.data.preprocessing import Interpolation, Preprocessing
from vitkit.data.resize import Size
from vitkit.data.transforms import FILTER_MARGIN, LONG_SIDE_RATIO, per_channel, size_before_crop


@dataclass(frozen=True)
class Axis:
    """The geometry of one side of an image, in float64 scalars.

    The pixels `first` to `first + kept` are resized to `size`, and the model's input starts `offset` pixels into the
    result; an offset below 0 is padding.
    """

    first: Tensor
    kept: Tensor
    size: Tensor
    offset: Tensor


def resize_batch(images: Tensor, image: Size, preprocessing: Preprocessing) -> Tensor:
    """(B, height, width, C) → (B, C, *image), both on 0 to 255: the geometry for images of one size."""
    height, width, channels = images.shape[1:]
    down, across = axes(height, width, image, preprocessing)
    rows, rows_used = filter_weights(down, height, image[0], preprocessing.interpolation)  # (rows, height)
    columns, columns_used = filter_weights(across, width, image[1], preprocessing.interpolation)  # (columns, width)
    # rows first: they may have interleaved channels, and the transposed image is smaller then
    shrunk = (rows @ images.float().flatten(2)).unflatten(2, (width, channels))  # (B, rows, width, C)
    framed = shrunk.permute(0, 3, 1, 2) @ columns.T  # (B, C, rows, columns)
    if preprocessing.resize == "letterbox":
        # the mean colour is what normalisation makes zero
        padding = ~(rows_used[:, None] & columns_used)
        return framed + padding * (per_channel(preprocessing.mean, channels) * 255)
    return framed.clamp(0, 255)


def axes(height: int, width: int, image: Size, preprocessing: Preprocessing) -> tuple[Axis, Axis]:
    output, sides = _scalars(*image), _scalars(height, width)
    target = _scalars(size_before_crop(image[0], preprocessing.crop), size_before_crop(image[1], preprocessing.crop))
    kept, sizes = sides, target
    if preprocessing.resize == "letterbox":
        scale = torch.minimum(output[0] / sides[0], output[1] / sides[1])
        sizes = [(side * scale).round().clamp(1, most) for side, most in zip(sides, image, strict=True)]
    elif preprocessing.resize == "crop":
        kept = _without_ends(sides, target)
        scale = torch.maximum(target[0] / kept[0], target[1] / kept[1])
        sizes = [torch.maximum((side * scale).round(), least) for side, least in zip(kept, target, strict=True)]
    down, across = (
        Axis(_halved(side - keep), keep, size, _halved(size - room))
        for side, keep, size, room in zip(sides, kept, sizes, output, strict=True)
    )
    return down, across


def _scalars(*sides: int) -> list[Tensor]:
    """Return sides as tensors, so that rounding and choosing become operations of the graph.

    All of them are tensors, because torch divides a Python number by a tensor in two steps, and rounds twice.
    """
    return [torch.full((), side, dtype=torch.float64) for side in sides]


def _without_ends(sides: list[Tensor], target: list[Tensor]) -> list[Tensor]:
    scale = torch.maximum(target[0] / sides[0], target[1] / sides[1])
    kept = []
    for side, length in zip(sides, target, strict=True):
        needed = (length / scale).ceil() + 2 * FILTER_MARGIN
        odd = (side - needed) % 2  # as many pixels go on one side as on the other
        kept.append(torch.where((side * scale <= LONG_SIDE_RATIO * length) | (side <= needed), side, needed + odd))
    return kept


def _halved(count: Tensor) -> Tensor:
    """Halve and round towards zero: the beginning never loses, or gets, the larger half."""
    return (count / 2).trunc()


def filter_weights(axis: Axis, side: int, length: int, filter: Interpolation) -> tuple[Tensor, Tensor]:
    """Return the weights of the antialiasing filter, (length, side), and which rows are no padding, (length,).

    Each row sums to 1, or to 0 in the padding. They are computed in float32 and in torch's order of operations, so that
    the same roundings give the same weights.
    """
    row = torch.arange(length, dtype=torch.float64) + axis.offset  # in the resized image
    used = (row >= 0) & (row < axis.size)
    pixel = torch.arange(side, dtype=torch.float64) - axis.first  # in the part that is resized
    inside = (pixel >= 0) & (pixel < axis.kept)
    scale = axis.kept.float() / axis.size.float()
    centre = scale * (row.float() + 0.5)
    distance = (pixel.float() - centre[:, None] + 0.5) * (1 / scale.clamp(min=1))  # (length, side)
    heights = torch.where(inside, _FILTERS[filter](distance.abs()), 0)
    total = torch.where(used, heights.sum(dim=1), 1)
    return torch.where(used[:, None], heights / total[:, None], 0), used


def _triangle(distance: Tensor) -> Tensor:
    return (1 - distance).clamp(min=0)


def _cubic(distance: Tensor) -> Tensor:
    """Return Keys' cubic with a = -0.5, as in Pillow; torch's own without antialiasing has -0.75."""
    a = -0.5
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * a
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0))


_FILTERS = {"bilinear": _triangle, "bicubic": _cubic}
