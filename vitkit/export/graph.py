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

from vitkit.data.geometry import FILTER_MARGIN, LONG_SIDE_RATIO, interpolation_of, resize_target
from vitkit.data.preprocessing import Interpolation, Preprocessing
from vitkit.data.resize import Size, as_bytes
from vitkit.data.transforms import clamps, padding_colour, rounds_to_bytes


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
    filter = interpolation_of(image, preprocessing)
    rows, rows_used = filter_weights(down, height, image[0], filter)  # (rows, height)
    columns, columns_used = filter_weights(across, width, image[1], filter)  # (columns, width)
    if rounds_to_bytes(preprocessing):
        values = images.float()
        whole = (
            (values == values.round()).flatten(1).all(dim=1)[:, None, None, None]
            if images.is_floating_point()
            else True
        )
        narrowed = _as_bytes_where(whole, values.permute(0, 3, 1, 2) @ columns.T)  # (B, C, height, columns)
        framed = _as_bytes_where(whole, rows @ narrowed)  # (B, C, rows, columns)
    else:
        # rows first: they may have interleaved channels, and the transposed image is smaller then
        shrunk = (rows @ images.float().flatten(2)).unflatten(2, (width, channels))  # (B, rows, width, C)
        framed = shrunk.permute(0, 3, 1, 2) @ columns.T  # (B, C, rows, columns)
    if preprocessing.resize == "letterbox":
        # the mean colour is what normalisation makes zero
        padding = ~(rows_used[:, None] & columns_used)
        framed = framed + padding * padding_colour(preprocessing, channels)
    return framed.clamp(0, 255) if clamps(preprocessing) else framed


def _as_bytes_where(whole: Tensor | bool, values: Tensor) -> Tensor:
    return as_bytes(values) if whole is True else torch.where(torch.as_tensor(whole), as_bytes(values), values)


def axes(height: int, width: int, image: Size, preprocessing: Preprocessing) -> tuple[Axis, Axis]:
    """Return `vitkit.data.geometry.geometry`, as operations of a graph."""
    output, sides = _scalars(*image), _scalars(height, width)
    square = len(set(resize_target(image, preprocessing))) == 1
    target = _scalars(*resize_target(image, preprocessing))
    kept, sizes = sides, target
    if preprocessing.resize == "letterbox":
        sizes = _fit_sizes(sides, target, preprocessing)
    elif preprocessing.resize == "crop":
        kept = _without_ends(sides, target, LONG_SIDE_RATIO[preprocessing.rounding])
        sizes = _cover_sizes(kept, target, preprocessing, square)
    down, across = (
        Axis((side - keep) // 2, keep, size, _offset(size - room, preprocessing))
        for side, keep, size, room in zip(sides, kept, sizes, output, strict=True)
    )
    return down, across


def _cover_sizes(sides: list[Tensor], target: list[Tensor], preprocessing: Preprocessing, square: bool) -> list[Tensor]:
    if preprocessing.rounding == "vitkit":
        scale = torch.maximum(target[0] / sides[0], target[1] / sides[1])
        return [torch.maximum((side * scale).round(), least) for side, least in zip(sides, target, strict=True)]
    if square:
        short = torch.minimum(*sides)
        return [(target[0] * side / short).floor() for side in sides]
    ratio = torch.minimum(sides[0] / target[0], sides[1] / target[1])
    return [(side / ratio).round() for side in sides]


def _fit_sizes(sides: list[Tensor], target: list[Tensor], preprocessing: Preprocessing) -> list[Tensor]:
    if preprocessing.rounding == "timm":
        ratio = torch.maximum(sides[0] / target[0], sides[1] / target[1])
        return [(side / ratio).round().clamp(min=1) for side in sides]
    scale = torch.minimum(target[0] / sides[0], target[1] / sides[1])
    return [torch.minimum((side * scale).round().clamp(min=1), most) for side, most in zip(sides, target, strict=True)]


def _offset(excess: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Halve and round; of padding, the beginning never gets the larger half."""
    half = excess / 2
    return torch.where(half < 0, half.trunc(), half.round() if preprocessing.rounding == "timm" else half.floor())


def _scalars(*sides: int) -> list[Tensor]:
    """Return sides as tensors, so that rounding and choosing become operations of the graph.

    All of them are tensors, because torch divides a Python number by a tensor in two steps, and rounds twice.
    """
    return [torch.full((), side, dtype=torch.float64) for side in sides]


def _without_ends(sides: list[Tensor], target: list[Tensor], most: float) -> list[Tensor]:
    scale = torch.maximum(target[0] / sides[0], target[1] / sides[1])
    kept = []
    for side, length in zip(sides, target, strict=True):
        needed = (length / scale).ceil() + 2 * FILTER_MARGIN
        odd = (side - needed) % 2  # as many pixels go on one side as on the other
        kept.append(torch.where((side * scale <= most * length) | (side <= needed), side, needed + odd))
    return kept


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
