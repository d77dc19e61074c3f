"""Transforms: decoded pixels → the model's input. Both share one geometry:

EvalTransform   float32, antialiased, no randomness: evaluation, prediction, export and serving
TrainTransform  uint8: a random crop and flip, drawn for each image from (seed, epoch, index)

Shapes: C channels, (height, width) of the model's input.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vitkit.data.geometry import geometry, interpolation_of, resize_target
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.random_boxes import random_box
from vitkit.data.resize import Size, resize
from vitkit.data.stateless_rng import uniform
from vitkit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class EvalTransform:
    """The deterministic transform that belongs to the weights."""

    masks: ClassVar[bool] = False  # whether it takes the mask of an image, as the last channel, and returns it

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
        """Return the geometry and the normalisation in the words that every verb, report and file uses."""
        options, image = self.preprocessing, self.image
        target = resize_target(image, options)
        filter = f"({interpolation_of(image, options)}, antialiased)"
        size, cut = _size(target), f", centre crop {_size(image)}"
        if options.resize == "letterbox":
            geometry = f"resized to fit {size} px {filter}, padded with the mean colour" + cut * (target != image)
        elif options.resize == "squash":
            geometry = f"resized to {size} px, whatever the shape {filter}" + cut * (target != image)
        else:
            side = f"short side to {target[0]} px" if target[0] == target[1] else f"resized to cover {size} px"
            geometry = f"{side} {filter}{cut}"
        return [
            geometry,
            f"scaled to 0…1, mean {_format(options.mean)}, std {_format(options.std)}",
            *([options.origin] if options.origin else []),
        ]

    @property
    def description(self) -> str:
        """The preprocessing on one line: what each verb prints as its `input`."""
        return "; ".join(self.describe())


def fit_to_size(pixels: Tensor, image: Size, preprocessing: Preprocessing) -> Tensor:
    """Crop, squash or letterbox (C, h, w) → (C, *image)."""
    plan = geometry((pixels.shape[-2], pixels.shape[-1]), image, preprocessing)
    (top, left), (height, width) = plan.first, plan.kept
    resized = resize(
        pixels[None, :, top : top + height, left : left + width],
        plan.size,
        interpolation_of(image, preprocessing),
        bytes=rounds_to_bytes(preprocessing) and bool((pixels == pixels.round()).all()),
    )
    framed = cut(resized[0], plan.offset, image)
    if framed.is_floating_point() and clamps(preprocessing):  # for uint8, interpolate clamps by itself
        framed = framed.clamp(0, 255)
    if framed.shape[-2:] == image:
        return framed
    # pad with the mean colour, which normalisation maps to zero
    padded = padding_colour(preprocessing, len(pixels)).to(pixels.dtype).expand(-1, *image).clone()
    top, left = (max(-offset, 0) for offset in plan.offset)
    padded[:, top : top + framed.shape[-2], left : left + framed.shape[-1]] = framed
    return padded


def cut(pixels: Tensor, offset: Size, image: Size) -> Tensor:
    """Cut (C, *image) out of (C, h, w), as far as there are pixels."""
    rows, columns = (
        slice(max(first, 0), first + length if first >= 0 else None)
        for first, length in zip(offset, image, strict=True)
    )
    return pixels[:, rows, columns]


def clamps(preprocessing: Preprocessing) -> bool:
    """Return whether values are clamped to 0 to 255, which bicubic overshoots; letterboxes of old records are not."""
    return preprocessing.resize != "letterbox" or preprocessing.rounding != "vitkit"


def rounds_to_bytes(preprocessing: Preprocessing) -> bool:
    """Return whether whole grey levels stay whole, as in timm and transformers; of deeper images nothing is rounded."""
    return preprocessing.rounding != "vitkit"


def padding_colour(preprocessing: Preprocessing, channels: int) -> Tensor:
    """Return the mean colour on 0 to 255 as (C, 1, 1); timm pads in whole grey levels."""
    colour = per_channel(preprocessing.mean, channels) * 255
    return colour.round() if preprocessing.rounding == "timm" else colour


@dataclass(frozen=True, kw_only=True)
class TrainTransform:
    """The random crop and flip of training, on the CPU in uint8; RandAugment, mixup and scaling follow in batches."""

    masks: ClassVar[bool] = False  # as for EvalTransform

    image: Size
    crop: tuple[float, float] | None = (0.05, 1.0)  # share of the image's area, as in Inception's crop
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    precrop: int | None = None  # BiT's crop, in place of the other: from a random place of the image at this side
    flip: bool = True
    preprocessing: Preprocessing = field(default_factory=Preprocessing)  # the geometry where there is no random crop
    shrink: int | None = (
        None  # short side to which larger images are resized before the random crop: as caches store them
    )

    def __post_init__(self) -> None:
        for name, range_ in (("crop", self.crop), ("aspect", self.aspect)):
            if range_ is not None and not (0 < range_[0] <= range_[1] and (name == "aspect" or range_[1] <= 1)):
                raise ConfigError(f"{name}={range_} is not a range", try_="(least, greatest), above 0")
        if self.precrop is not None and self.precrop < max(self.image):
            raise ConfigError(
                f"augment.precrop = {self.precrop} is smaller than the model's input, {_size(self.image)} px",
                try_=f"--set augment.precrop={round(max(self.image) * 7 / 6)}, or a smaller --image",
            )

    def describe(self) -> list[str]:
        height, width = self.image
        if self.precrop is not None:
            side = self.precrop
            lines = [
                f"resized to {side} x {side}, whatever the shape (bilinear, uint8), random crop {height} x {width}"
            ]
        elif self.crop is not None:
            low, high = (f"{share:.0%}" for share in self.crop)
            lines = [f"random crop of {low} to {high} of the area, resized to {height} x {width} (bilinear, uint8)"]
            if self.shrink is not None:
                lines.insert(0, f"short side to {self.shrink} px where it is longer (bilinear, uint8)")
        else:
            bilinear = replace(self.preprocessing, interpolation="bilinear")
            evaluation = EvalTransform(image=self.image, preprocessing=bilinear)
            lines = [evaluation.describe()[0].replace("antialiased", "antialiased, uint8")]
        return lines + ["random horizontal flip of half of the images"] * self.flip

    @staticmethod
    def draw(seed: int, epochs: ArrayLike, indices: ArrayLike) -> list[list[float]]:
        """Draw the random numbers of many images, a row for each: one numpy call per image would be slow."""
        return uniform(seed, epochs, indices, "view", 5).tolist()

    def __call__(self, pixels: np.ndarray, draws: Sequence[float]) -> Tensor:
        """Transform (h, w, C) → (C, height, width) uint8."""
        return self.view(self.prepare(pixels), draws)

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        """Do the part without random numbers, whose result a cache can keep: (h, w, C) → (h', w', C) uint8."""
        if pixels.dtype != np.uint8:
            pixels = pixels.round().astype(np.uint8)
        if self.crop is None and self.precrop is None:
            bilinear = replace(self.preprocessing, interpolation="bilinear")
            return _channels_last(_fit_uint8(_channels_first(pixels)[0], self.image, bilinear))
        size = self.prepared_size((pixels.shape[0], pixels.shape[1]))
        return _channels_last(resize(_channels_first(pixels), size, "bilinear")[0])

    @property
    def preparation(self) -> tuple[object, ...]:
        """Return all that `prepare` depends on: equal for transforms that prepare images alike."""
        if self.precrop is not None:
            return ("precrop", self.precrop)
        return ("crop", self.shrink) if self.crop is not None else ("whole", self.image, self.preprocessing)

    def prepared_size(self, size: Size) -> Size:
        """Return the height and width of what `prepare` makes of an image of that size."""
        if self.precrop is not None:
            return self.precrop, self.precrop
        if self.crop is None:
            return self.image
        short = min(size)
        if self.shrink is None or short <= self.shrink:
            return size
        return round(size[0] * self.shrink / short), round(size[1] * self.shrink / short)

    def box(self, size: Size, draws: Sequence[float]) -> list[int]:
        """Return the (left, top, right, bottom) of a prepared image of that size that becomes the model's input."""
        height, width = self.image
        if self.precrop is not None:
            room = (side - kept + 1 for side, kept in zip(size, self.image, strict=True))
            top, left = (int(draw * offsets) for draw, offsets in zip(draws[3:], room, strict=True))
            return [left, top, left + width, top + height]
        if self.crop is None:
            return [0, 0, width, height]
        return round_box(random_box(draws[1:], size, area=self.crop, aspect=self.aspect))

    def flips(self, draws: Sequence[float]) -> bool:
        return self.flip and draws[0] < 0.5

    def view(self, prepared: np.ndarray, draws: Sequence[float]) -> Tensor:
        """Crop, resize and flip a prepared image → (C, height, width) uint8.

        numpy copies, for torch would wake its threads for so few bytes, and they may be busy with the training step.
        """
        left, top, right, bottom = self.box((prepared.shape[0], prepared.shape[1]), draws)
        crop = np.ascontiguousarray(prepared[top:bottom, left:right])
        view = resize(_channels_first(crop), self.image, "bilinear")[0]
        return torch.from_numpy(np.ascontiguousarray(view.numpy()[:, :, ::-1])) if self.flips(draws) else view


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


def _channels_last(pixels: Tensor) -> np.ndarray:
    """Return (C, h, w) as (h, w, C)."""
    return pixels.permute(1, 2, 0).numpy()


def _fit_uint8(pixels: Tensor, image: Size, preprocessing: Preprocessing) -> Tensor:
    if preprocessing.resize == "letterbox":
        return fit_to_size(pixels.float(), image, preprocessing).round().clamp(0, 255).byte()
    return fit_to_size(pixels, image, preprocessing)


def per_channel(values: tuple[float, ...], channels: int) -> Tensor:
    """Return the values as (C, 1, 1); if their number is not C, every channel gets their average."""
    if len(values) != channels:
        values = (sum(values) / len(values),) * channels
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def _size(image: Size) -> str:
    return f"{image[0]} x {image[1]}"


def _format(values: tuple[float, ...]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else "(" + ", ".join(f"{value:g}" for value in values) + ")"
