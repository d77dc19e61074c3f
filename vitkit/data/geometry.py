"""The geometry of preprocessing, in whole pixels: what is trimmed, the size it is resized to, where the crop begins.

Weights are evaluated with the code that they were trained with, and each code rounds in its own way. At 224 px with a
crop of 0.9, vitkit resizes the short side to 249 px and timm to 248, which changes 5 of 100 answers of a small model.

              size before the crop    long side       crop begins at
vitkit        round(side / crop)      rounded         floor(excess / 2)
timm          floor(side / crop)      rounded down    round(excess / 2), halves to even numbers; as in torchvision
transformers  as its file says        rounded down    floor(excess / 2)

timm's own peculiarities are kept: a crop that is not square is resized bilinearly, with its long side rounded; and
borders have the mean colour in whole grey levels.
"""

import math
from dataclasses import dataclass

from vitkit.data.preprocessing import Interpolation, Preprocessing
from vitkit.data.resize import Size

# An image longer than this many times the crop is trimmed before resizing, which moves pixels by a fraction of one. At
# 64, nobody's photo is; resizing one such image to 224 px takes some 50 MB.
LONG_SIDE_RATIO = {"vitkit": 4.0, "timm": 64.0, "transformers": 64.0}
FILTER_MARGIN = 4  # pixels around the crop that the widest filter can reach


@dataclass(frozen=True)
class Geometry:
    """The pixels that are used and where they go, each as (rows, columns).

    The pixels `first` to `first + kept` are resized to `size`, and the model's input starts `offset` pixels into the
    result; an offset below 0 is padding.
    """

    first: Size
    kept: Size
    size: Size
    offset: Size


def geometry(sides: Size, image: Size, preprocessing: Preprocessing) -> Geometry:
    """Return the geometry for an image of these sides and a model's input of the size `image`."""
    target = resize_target(image, preprocessing)
    kept = sides
    if preprocessing.resize == "squash":
        size = target
    elif preprocessing.resize == "letterbox":
        size = _fit_size(sides, target, preprocessing)
    else:
        kept = _without_ends(sides, target, LONG_SIDE_RATIO[preprocessing.rounding])
        size = _cover_size(kept, target, preprocessing)
    first = (sides[0] - kept[0]) // 2, (sides[1] - kept[1]) // 2
    offset = tuple(_offset(side - room, preprocessing) for side, room in zip(size, image, strict=True))
    return Geometry(first, kept, size, (offset[0], offset[1]))


def resize_target(image: Size, preprocessing: Preprocessing) -> Size:
    """Return the size that the image is resized to cover, fill or fit, before its centre is cut out."""
    if preprocessing.resize == "letterbox" and preprocessing.rounding != "timm":
        return image
    to_integer = math.floor if preprocessing.rounding == "timm" else round
    return to_integer(image[0] / preprocessing.crop), to_integer(image[1] / preprocessing.crop)


def interpolation_of(image: Size, preprocessing: Preprocessing) -> Interpolation:
    """Return the interpolation filter; timm always resizes bilinearly for crops that are not square."""
    target = resize_target(image, preprocessing)
    if preprocessing.rounding == "timm" and preprocessing.resize == "crop" and target[0] != target[1]:
        return "bilinear"
    return preprocessing.interpolation


def _without_ends(sides: Size, target: Size, most: float) -> Size:
    """Return the sides without the ends that the crop would cut off anyway, for resizing would enlarge them first.

    A line of 1 x 60,000 pixels would otherwise become 224 x 13,440,000 for the sake of its middle.
    """
    scale = max(goal / side for side, goal in zip(sides, target, strict=True))
    kept = []
    for side, goal in zip(sides, target, strict=True):
        needed = math.ceil(goal / scale) + 2 * FILTER_MARGIN
        # the centre stays: as many pixels go on one side as on the other
        kept.append(side if side * scale <= most * goal or side <= needed else needed + (side - needed) % 2)
    return kept[0], kept[1]


def _cover_size(sides: Size, target: Size, preprocessing: Preprocessing) -> Size:
    """Return the smallest size of the same aspect ratio that covers the target."""
    height, width = sides
    if preprocessing.rounding == "vitkit":
        scale = max(target[0] / height, target[1] / width)
        return max(round(height * scale), target[0]), max(round(width * scale), target[1])
    if target[0] == target[1]:
        short = min(sides)
        return int(target[0] * height / short), int(target[0] * width / short)
    ratio = min(height / target[0], width / target[1])
    return round(height / ratio), round(width / ratio)


def _fit_size(sides: Size, target: Size, preprocessing: Preprocessing) -> Size:
    """Return the largest size of the same aspect ratio that fits into the target."""
    height, width = sides
    if preprocessing.rounding == "timm":
        ratio = max(height / target[0], width / target[1])
        return max(round(height / ratio), 1), max(round(width / ratio), 1)
    scale = min(target[0] / height, target[1] / width)
    return min(max(round(height * scale), 1), target[0]), min(max(round(width * scale), 1), target[1])


def _offset(excess: int, preprocessing: Preprocessing) -> int:
    """Halve what the resized side has more than the model's input; less than nothing is padding."""
    if excess < 0:
        return -(-excess // 2)
    return round(excess / 2) if preprocessing.rounding == "timm" else excess // 2
