"""Pixels → what a model sees. Two ways, one geometry:

exact  float32, antialiased, no randomness: evaluation, prediction, export and serving, wherever answers are compared
fast   uint8, for training: a random crop and flip, drawn for each picture from (seed, epoch, index)

Shapes: C channels, (height, width) of the model's image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vitkit.data.boxes import draw_box
from vitkit.data.draws import uniform
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.resize import resize
from vitkit.errors import ConfigError

Size = tuple[int, int]  # height, width

LONG = 4.0  # times the crop, from which a picture's ends are cut off before resizing
MARGIN = 4  # pixels around the crop that the widest filter may look at


@dataclass(frozen=True, kw_only=True)
class Exact:
    """The chain that belongs to weights; its words go into reports."""

    image: Size
    preprocessing: Preprocessing

    def __call__(self, pixels: np.ndarray) -> Tensor:
        """(h, w, C) uint8 or float32 on 0 to 255 → (C, height, width) float32, normalised."""
        return self.normalise(self.frame(pixels))

    def frame(self, pixels: np.ndarray) -> Tensor:
        """The geometry alone: (C, height, width) float32 on 0 to 255."""
        picture = torch.from_numpy(pixels).permute(2, 0, 1).float()
        return fit(picture, self.image, self.preprocessing)

    def normalise(self, framed: Tensor) -> Tensor:
        mean, std = (
            per_channel(values, framed.shape[-3]) for values in (self.preprocessing.mean, self.preprocessing.std)
        )
        return (framed / 255 - mean) / std

    def describe(self) -> list[str]:
        how, (height, width) = self.preprocessing, self.image
        size, grown = f"{height} x {width}", f"{before_crop(height, how.crop)} x {before_crop(width, how.crop)}"
        geometry = {
            "crop": f"resize to cover {grown}, cut {size} from the centre",
            "squash": f"resize to {grown}, whatever the shape"
            + (f", cut {size} from the centre" if how.crop != 1 else ""),
            "letterbox": f"resize to fit {size}, pad with the mean colour",
        }[how.resize]
        return [
            f"{geometry} ({how.interpolation}, antialiased, float32)",
            f"scale to 0…1, subtract {_words(how.mean)}, divide by {_words(how.std)}",
        ]


def fit(picture: Tensor, image: Size, how: Preprocessing) -> Tensor:
    """(C, h, w) → (C, *image) by cropping, squashing or letterboxing."""
    if how.resize == "letterbox":
        return _letterbox(picture, image, how)
    grown = before_crop(image[0], how.crop), before_crop(image[1], how.crop)
    if how.resize == "crop":
        picture = _without_ends(picture, grown)
    size = grown if how.resize == "squash" else _covering((picture.shape[-2], picture.shape[-1]), grown)
    resized = resize(picture[None], size, how.interpolation)[0]
    framed = centre_crop(resized, image)
    # bicubic overshoots at hard edges, past what a picture can hold; bytes stop there by themselves
    return framed.clamp(0, 255) if framed.is_floating_point() else framed


def centre_crop(picture: Tensor, image: Size) -> Tensor:
    top, left = ((side - wanted) // 2 for side, wanted in zip(picture.shape[-2:], image, strict=True))
    return picture[:, top : top + image[0], left : left + image[1]]


def _without_ends(picture: Tensor, grown: Size) -> Tensor:
    """Very long pictures lose the ends that the crop would cut off anyway, before they are enlarged with the rest.

    A line of 1 x 60,000 pixels would otherwise become 224 x 13,440,000 for the sake of its middle.
    """
    sides = picture.shape[-2:]
    scale = max(wanted / side for side, wanted in zip(sides, grown, strict=True))
    kept = []
    for side, wanted in zip(sides, grown, strict=True):
        needed = math.ceil(wanted / scale) + 2 * MARGIN
        # the same middle: as many pixels go on one side as on the other
        kept.append(side if side * scale <= LONG * wanted or side <= needed else needed + (side - needed) % 2)
    top, left = ((side - keep) // 2 for side, keep in zip(sides, kept, strict=True))
    return picture[:, top : top + kept[0], left : left + kept[1]]


def _covering(size: Size, target: Size) -> Size:
    """The smallest size of the same shape that covers the target."""
    scale = max(target[0] / size[0], target[1] / size[1])
    return max(round(size[0] * scale), target[0]), max(round(size[1] * scale), target[1])


def _letterbox(picture: Tensor, image: Size, how: Preprocessing) -> Tensor:
    height, width = picture.shape[-2:]
    scale = min(image[0] / height, image[1] / width)
    size = min(max(round(height * scale), 1), image[0]), min(max(round(width * scale), 1), image[1])
    resized = resize(picture[None], size, how.interpolation)[0]
    top, left = (image[0] - size[0]) // 2, (image[1] - size[1]) // 2
    # the mean colour is what normalisation makes zero
    framed = (per_channel(how.mean, len(picture)) * 255).expand(-1, *image).clone()
    framed[:, top : top + size[0], left : left + size[1]] = resized
    return framed


@dataclass(frozen=True, kw_only=True)
class Fast:
    """The training chain on the CPU, in bytes; what remains (RandAugment, mixing, scaling) happens in batches."""

    image: Size
    crop: tuple[float, float] | None = (0.05, 1.0)  # share of the picture's area, as in Inception's crop
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True
    whole: Preprocessing = field(default_factory=Preprocessing)  # without a random crop: how all of it is fitted

    def __post_init__(self) -> None:
        for name, range_ in (("crop", self.crop), ("aspect", self.aspect)):
            if range_ is not None and not (0 < range_[0] <= range_[1] and (name == "aspect" or range_[1] <= 1)):
                raise ConfigError(f"{name}={range_} is not a range", try_="(least, greatest), above 0")

    def describe(self) -> list[str]:
        height, width = self.image
        if self.crop is not None:
            low, high = (f"{share:.0%}" for share in self.crop)
            views = [f"a random crop of {low} to {high} of the area, resized to {height} x {width} (bilinear, bytes)"]
        else:
            exact = replace(self.whole, interpolation="bilinear")
            views = [Exact(image=self.image, preprocessing=exact).describe()[0].replace("float32", "bytes")]
        return views + ["mirrored for half of the pictures"] * self.flip

    @staticmethod
    def draw(seed: int, epochs: ArrayLike, indices: ArrayLike) -> list[list[float]]:
        """The random numbers of some pictures, a row for each; all at once, because numpy is slow on single ones."""
        return uniform(seed, epochs, indices, "view", 5).tolist()

    def __call__(self, pixels: np.ndarray, draws: Sequence[float]) -> Tensor:
        """(h, w, C) → (C, height, width) uint8."""
        if pixels.dtype != np.uint8:
            pixels = pixels.round().astype(np.uint8)
        flipped = self.flip and draws[0] < 0.5
        if self.crop is not None:
            box = draw_box(draws[1:], pixels.shape[:2], area=self.crop, aspect=self.aspect)
            left, top, right, bottom = whole_pixels(box)
            picture = resize(_planes(pixels[top:bottom, left:right]), self.image, "bilinear")[0]
        else:
            picture = _fit_bytes(_planes(pixels)[0], self.image, replace(self.whole, interpolation="bilinear"))
        return picture.flip(-1) if flipped else picture


def whole_pixels(box: Sequence[float]) -> list[int]:
    """Edges on pixel borders, at least one pixel apart."""
    left, top, right, bottom = map(round, box)
    if right == left:
        left, right = int(box[0]), int(box[0]) + 1
    if bottom == top:
        top, bottom = int(box[1]), int(box[1]) + 1
    return [left, top, right, bottom]


def _planes(pixels: np.ndarray) -> Tensor:
    """(h, w, C) → (1, C, h, w), a view: torch's byte kernel is fastest on interleaved channels."""
    return torch.from_numpy(pixels).permute(2, 0, 1)[None]


def _fit_bytes(picture: Tensor, image: Size, how: Preprocessing) -> Tensor:
    if how.resize == "letterbox":
        return fit(picture.float(), image, how).round().clamp(0, 255).byte()
    return fit(picture, image, how)


def per_channel(values: tuple[float, ...], channels: int) -> Tensor:
    """(C, 1, 1); where there is not one value for each channel, their average serves all."""
    if len(values) != channels:
        values = (sum(values) / len(values),) * channels
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def before_crop(side: int, crop: float) -> int:
    return round(side / crop)


def _words(values: tuple[float, ...]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else "(" + ", ".join(f"{value:g}" for value in values) + ")"
