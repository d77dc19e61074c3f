"""Transforms of an image together with its mask, which travels as the last channel of the image.

Whatever holds, copies or caches images holds their masks, too. Training images and masks are resized to one size here,
the canvas; what is random happens to whole batches on the training device (`vitkit.data.mask_augment`).

Shapes: B images, C channels, (h, w) of the stored image, (height, width) of the result.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vitkit.data.resize import Size, resize
from vitkit.data.transforms import EvalTransform, TrainTransform


def join_mask(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return (h, w, C + 1): the pixels (h, w, C) and their mask (h, w) as the last channel."""
    return np.concatenate([pixels, mask.astype(pixels.dtype)[..., None]], axis=2)


def split_mask(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the images (B, C, height, width) and the masks (B, height, width) uint8 of (B, C + 1, height, width)."""
    return images[:, :-1], images[:, -1].to(torch.uint8)


def resize_mask(mask: np.ndarray, size: Size) -> np.ndarray:
    """Resize (h, w) to `size` by the nearest pixel: a mean of class numbers would be another class."""
    rows, columns = (
        ((np.arange(new) + 0.5) * (old / new)).astype(np.int64) for old, new in zip(mask.shape, size, strict=True)
    )
    return mask[rows[:, None], columns]


@dataclass(frozen=True, kw_only=True)
class MaskedTrainTransform(TrainTransform):
    """Image and mask resized to the canvas, `image`, whatever the shape, as evaluation does; nothing is random here."""

    masks: ClassVar[bool] = True

    crop: tuple[float, float] | None = field(default=None, init=False)
    flip: bool = field(default=False, init=False)

    def describe(self) -> list[str]:
        height, width = self.image
        return [f"resized with their masks to {height} x {width} px, whatever the shape (bilinear, uint8)"]

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        """(h, w, C + 1) → (height, width, C + 1) uint8."""
        image, mask = pixels[..., :-1], pixels[..., -1].astype(np.uint8)
        if image.dtype != np.uint8:
            image = image.round().clip(0, 255).astype(np.uint8)
        channels_first = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None]
        resized = resize(channels_first, self.image, "bilinear")[0].permute(1, 2, 0).numpy()
        return join_mask(resized, resize_mask(mask, self.image))

    @property
    def preparation(self) -> tuple[object, ...]:
        return ("canvas", self.image)


@dataclass(frozen=True, kw_only=True)
class MaskedEvalTransform(EvalTransform):
    """The model's input with the mask, resized by the nearest pixel, as a last channel that is not normalised."""

    masks: ClassVar[bool] = True

    def __call__(self, pixels: np.ndarray) -> Tensor:
        """(h, w, C + 1) → (C + 1, height, width) float32."""
        image = super().__call__(np.ascontiguousarray(pixels[..., :-1]))
        mask = resize_mask(pixels[..., -1], self.image).astype(np.float32)
        return torch.cat([image, torch.from_numpy(mask)[None]])
