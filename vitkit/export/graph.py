"""The preprocessing chain as tensor arithmetic that a graph can hold, for pictures of whatever size comes.

Antialiased resizing is linear in the pixels: each row of the result is a weighted sum of rows of the picture, and the
same holds for columns. So the whole geometry, ends, resize, crop, padding, becomes two matrices that are computed from
the picture's sides, and two products. No runtime's own resize is involved, and all give the same numbers.

`vitkit.data.transforms.Exact` is the truth that this is held equal to. Its geometry counts in Python's float64, its
weights in torch's float32, and so does this.

Shapes: B pictures, C channels, (height, width) of the picture, (rows, columns) of the model's image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitkit.data.preprocessing import Interpolation, Preprocessing
from vitkit.data.transforms import LONG, MARGIN, Size, before_crop, per_channel


@dataclass(frozen=True)
class Axis:
    """What happens to one side of a picture: the pixels `first` to `first + kept` are resized to `size`, and the
    model's image starts `offset` pixels into the result; below 0, there is padding before it. float64, no dimensions.
    """

    first: Tensor
    kept: Tensor
    size: Tensor
    offset: Tensor


def frame(pictures: Tensor, image: Size, how: Preprocessing) -> Tensor:
    """(B, height, width, C) on 0 to 255 → (B, C, *image) on 0 to 255: `Exact.frame` for a batch of one size."""
    height, width, channels = pictures.shape[1:]
    down, across = axes(height, width, image, how)
    rows, rows_used = weights(down, height, image[0], how.interpolation)  # (rows, height)
    columns, columns_used = weights(across, width, image[1], how.interpolation)  # (columns, width)
    # rows first: lines of interleaved channels are as good as any, and the picture is turned round when it is small
    shrunk = (rows @ pictures.float().flatten(2)).unflatten(2, (width, channels))  # (B, rows, width, C)
    framed = shrunk.permute(0, 3, 1, 2) @ columns.T  # (B, C, rows, columns)
    if how.resize == "letterbox":
        # the mean colour is what normalisation makes zero
        padding = ~(rows_used[:, None] & columns_used)
        return framed + padding * (per_channel(how.mean, channels) * 255)
    return framed.clamp(0, 255)


def axes(height: int, width: int, image: Size, how: Preprocessing) -> tuple[Axis, Axis]:
    wanted, sides = _numbers(*image), _numbers(height, width)
    target = _numbers(before_crop(image[0], how.crop), before_crop(image[1], how.crop))
    kept, sizes = sides, target
    if how.resize == "letterbox":
        scale = torch.minimum(wanted[0] / sides[0], wanted[1] / sides[1])
        sizes = [(side * scale).round().clamp(1, most) for side, most in zip(sides, image, strict=True)]
    elif how.resize == "crop":
        kept = _without_ends(sides, target)
        scale = torch.maximum(target[0] / kept[0], target[1] / kept[1])
        sizes = [torch.maximum((side * scale).round(), least) for side, least in zip(kept, target, strict=True)]
    down, across = (
        Axis(_halved(side - keep), keep, size, _halved(size - room))
        for side, keep, size, room in zip(sides, kept, sizes, wanted, strict=True)
    )
    return down, across


def _numbers(*sides: int) -> list[Tensor]:
    """Whole numbers of the graph become tensors, and stay so: rounding and choosing then are operations. All of them
    do, for torch divides a Python number by a tensor in two steps, and rounds twice.
    """
    return [torch.full((), side, dtype=torch.float64) for side in sides]


def _without_ends(sides: list[Tensor], target: list[Tensor]) -> list[Tensor]:
    scale = torch.maximum(target[0] / sides[0], target[1] / sides[1])
    kept = []
    for side, wanted in zip(sides, target, strict=True):
        needed = (wanted / scale).ceil() + 2 * MARGIN
        odd = (side - needed) % 2  # as many pixels go on one side as on the other
        kept.append(torch.where((side * scale <= LONG * wanted) | (side <= needed), side, needed + odd))
    return kept


def _halved(count: Tensor) -> Tensor:
    """Towards zero: what is cut off at the beginning, or padded there, is never the larger half."""
    return (count / 2).trunc()


def weights(axis: Axis, side: int, wanted: int, filter: Interpolation) -> tuple[Tensor, Tensor]:
    """(wanted, side) of the antialiasing filter's weights, each row summing to 1, or 0 in the padding; and (wanted,),
    which rows are none.

    In float32 and in torch's order of operations, so that the same roundings give the same weights.
    """
    place = torch.arange(wanted, dtype=torch.float64) + axis.offset  # in the resized picture
    used = (place >= 0) & (place < axis.size)
    pixel = torch.arange(side, dtype=torch.float64) - axis.first  # in the part that is resized
    inside = (pixel >= 0) & (pixel < axis.kept)
    scale = axis.kept.float() / axis.size.float()
    centre = scale * (place.float() + 0.5)
    distance = (pixel.float() - centre[:, None] + 0.5) * (1 / scale.clamp(min=1))  # (wanted, side)
    heights = torch.where(inside, _FILTERS[filter](distance.abs()), 0)
    total = torch.where(used, heights.sum(dim=1), 1)
    return torch.where(used[:, None], heights / total[:, None], 0), used


def _triangle(distance: Tensor) -> Tensor:
    return (1 - distance).clamp(min=0)


def _cubic(distance: Tensor) -> Tensor:
    """Keys' with a = -0.5, as in Pillow; torch's own without antialiasing has -0.75."""
    a = -0.5
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * a
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0))


_FILTERS = {"bilinear": _triangle, "bicubic": _cubic}
