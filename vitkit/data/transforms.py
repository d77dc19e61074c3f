"""Transforms: decoded pixels → the model's input. Both share one geometry:

EvalTransform   float32, antialiased, no randomness: evaluation, prediction, export and serving
TrainTransform  uint8: a random crop and flip, drawn for each image from (seed, epoch, index)

Shapes: C channels, (height, width) of the model's input.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vitkit.data.preprocessing import Preprocessing
from vitkit.data.random_boxes import random_box
from vitkit.data.resize import Size, resize
from vitkit.data.stateless_rng import uniform
from vitkit.errors import ConfigError

LONG_SIDE_RATIO = 4.0  # an image longer than this many times the crop is trimmed before resizing
FILTER_MARGIN = 4  # pixels around the crop that the widest filter can reach


@dataclass(frozen=True, kw_only=True)
class EvalTransform:
    """The deterministic transform that belongs to the weights."""

    image: Size
    preprocessing: Preprocessing

    def __call__(self, pixels: np.ndarray) -> Tensor:
        """Transform (h, w, C) uint8 or float32 on 0 to 255 → (C, height, width) float32, normalised."""
        return self.normalise(self.resize_only(pixels))

    def resize_only(self, pixels: np.ndarray) -> Tensor:
        """Resize and crop without normalising: (C, height, width) float32 on 0 to 255."""
        return fit_to_size(torch.from_numpy(pixels).permute(2, 0, 1).float(), self.image, self.preprocessing)

    def normalise(self, pixels: Tensor) -> Tensor:
        mean, std = (
            per_channel(values, pixels.shape[-3]) for values in (self.preprocessing.mean, self.preprocessing.std)
        )
        return (pixels / 255 - mean) / std

    def describe(self) -> list[str]:
        options, (height, width) = self.preprocessing, self.image
        size = f"{height} x {width}"
        resized = f"{size_before_crop(height, options.crop)} x {size_before_crop(width, options.crop)}"
        geometry = {
            "crop": f"resize to cover {resized}, cut {size} from the centre",
            "squash": f"resize to {resized}, whatever the shape"
            + (f", cut {size} from the centre" if options.crop != 1 else ""),
            "letterbox": f"resize to fit {size}, pad with the mean colour",
        }[options.resize]
        return [
            f"{geometry} ({options.interpolation}, antialiased, float32)",
            f"scale to 0…1, subtract {_format(options.mean)}, divide by {_format(options.std)}",
        ]


def fit_to_size(pixels: Tensor, image: Size, preprocessing: Preprocessing) -> Tensor:
    """Crop, squash or letterbox (C, h, w) → (C, *image)."""
    if preprocessing.resize == "letterbox":
        return _letterbox(pixels, image, preprocessing)
    target = size_before_crop(image[0], preprocessing.crop), size_before_crop(image[1], preprocessing.crop)
    if preprocessing.resize == "crop":
        pixels = _trim_ends(pixels, target)
    size = target if preprocessing.resize == "squash" else _cover_size((pixels.shape[-2], pixels.shape[-1]), target)
    cropped = centre_crop(resize(pixels[None], size, preprocessing.interpolation)[0], image)
    # bicubic overshoots 0 to 255 at hard edges; for uint8, interpolate clamps by itself
    return cropped.clamp(0, 255) if cropped.is_floating_point() else cropped


def centre_crop(pixels: Tensor, image: Size) -> Tensor:
    top, left = ((side - crop) // 2 for side, crop in zip(pixels.shape[-2:], image, strict=True))
    return pixels[:, top : top + image[0], left : left + image[1]]


def _trim_ends(pixels: Tensor, target: Size) -> Tensor:
    """Trim from very long images the ends that the crop would cut off anyway, before resizing enlarges them.

    A line of 1 x 60,000 pixels would otherwise become 224 x 13,440,000 for the sake of its middle.
    """
    sides = pixels.shape[-2:]
    scale = max(goal / side for side, goal in zip(sides, target, strict=True))
    kept = []
    for side, goal in zip(sides, target, strict=True):
        needed = math.ceil(goal / scale) + 2 * FILTER_MARGIN
        # the centre stays: as many pixels go on one side as on the other
        kept.append(side if side * scale <= LONG_SIDE_RATIO * goal or side <= needed else needed + (side - needed) % 2)
    top, left = ((side - keep) // 2 for side, keep in zip(sides, kept, strict=True))
    return pixels[:, top : top + kept[0], left : left + kept[1]]


def _cover_size(size: Size, target: Size) -> Size:
    """Return the smallest size of the same aspect ratio that covers the target."""
    scale = max(target[0] / size[0], target[1] / size[1])
    return max(round(size[0] * scale), target[0]), max(round(size[1] * scale), target[1])


def _letterbox(pixels: Tensor, image: Size, preprocessing: Preprocessing) -> Tensor:
    height, width = pixels.shape[-2:]
    scale = min(image[0] / height, image[1] / width)
    size = min(max(round(height * scale), 1), image[0]), min(max(round(width * scale), 1), image[1])
    resized = resize(pixels[None], size, preprocessing.interpolation)[0]
    top, left = (image[0] - size[0]) // 2, (image[1] - size[1]) // 2
    # pad with the mean colour, which normalisation maps to zero
    padded = (per_channel(preprocessing.mean, len(pixels)) * 255).expand(-1, *image).clone()
    padded[:, top : top + size[0], left : left + size[1]] = resized
    return padded


@dataclass(frozen=True, kw_only=True)
class TrainTransform:
    """The random crop and flip of training, on the CPU in uint8; RandAugment, mixup and scaling follow in batches."""

    image: Size
    crop: tuple[float, float] | None = (0.05, 1.0)  # share of the image's area, as in Inception's crop
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    preprocessing: Preprocessing = field(default_factory=Preprocessing)  # the geometry where there is no random crop

    def __post_init__(self) -> None:
        for name, range_ in (("crop", self.crop), ("aspect", self.aspect)):
            if range_ is not None and not (0 < range_[0] <= range_[1] and (name == "aspect" or range_[1] <= 1)):
                raise ConfigError(f"{name}={range_} is not a range", try_="(least, greatest), above 0")

    def describe(self) -> list[str]:
        height, width = self.image
        if self.crop is not None:
            low, high = (f"{share:.0%}" for share in self.crop)
            lines = [f"random crop of {low} to {high} of the area, resized to {height} x {width} (bilinear, uint8)"]
        else:
            bilinear = replace(self.preprocessing, interpolation="bilinear")
            evaluation = EvalTransform(image=self.image, preprocessing=bilinear)
            lines = [evaluation.describe()[0].replace("float32", "uint8")]
        return lines + ["random horizontal flip of half of the images"] * self.flip

    @staticmethod
    def draw(seed: int, epochs: ArrayLike, indices: ArrayLike) -> list[list[float]]:
        """Draw the random numbers of many images, a row for each: one numpy call per image would be slow."""
        return uniform(seed, epochs, indices, "view", 5).tolist()

    def __call__(self, pixels: np.ndarray, draws: Sequence[float]) -> Tensor:
        """Transform (h, w, C) → (C, height, width) uint8."""
        if pixels.dtype != np.uint8:
            pixels = pixels.round().astype(np.uint8)
        flipped = self.flip and draws[0] < 0.5
        if self.crop is not None:
            box = random_box(draws[1:], pixels.shape[:2], area=self.crop, aspect=self.aspect)
            left, top, right, bottom = round_box(box)
            view = resize(_channels_first(pixels[top:bottom, left:right]), self.image, "bilinear")[0]
        else:
            bilinear = replace(self.preprocessing, interpolation="bilinear")
            view = _fit_uint8(_channels_first(pixels)[0], self.image, bilinear)
        return view.flip(-1) if flipped else view


def round_box(box: Sequence[float]) -> list[int]:
    """Round the edges to pixel borders, at least one pixel apart."""
    left, top, right, bottom = map(round, box)
    if right == left:
        left, right = int(box[0]), int(box[0]) + 1
    if bottom == top:
        top, bottom = int(box[1]), int(box[1]) + 1
    return [left, top, right, bottom]


def _channels_first(pixels: np.ndarray) -> Tensor:
    """Return (h, w, C) as a (1, C, h, w) view: torch's uint8 kernel is fastest on interleaved channels."""
    return torch.from_numpy(pixels).permute(2, 0, 1)[None]


def _fit_uint8(pixels: Tensor, image: Size, preprocessing: Preprocessing) -> Tensor:
    if preprocessing.resize == "letterbox":
        return fit_to_size(pixels.float(), image, preprocessing).round().clamp(0, 255).byte()
    return fit_to_size(pixels, image, preprocessing)


def per_channel(values: tuple[float, ...], channels: int) -> Tensor:
    """Return the values as (C, 1, 1); if their number is not C, every channel gets their average."""
    if len(values) != channels:
        values = (sum(values) / len(values),) * channels
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def size_before_crop(side: int, crop: float) -> int:
    return round(side / crop)


def _format(values: tuple[float, ...]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else "(" + ", ".join(f"{value:g}" for value in values) + ")"
