"""Masks as pixels: in the colours of their classes, over the image, and where a predicted mask is wrong.

Shapes: (h, w, C) pixels on 0 to 255, (h, w) masks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.masks.ignore import IGNORE

Colours = Sequence[tuple[int, int, int]]
Pixels = NDArray[np.uint8]
Mask = NDArray[np.uint8]

OPACITY = 0.6  # of a mask over an image
WRONG = (232, 88, 24)  # orange: red and green are what many cannot tell apart
RIGHT_BRIGHTNESS, RIGHT_CONTRAST = 110, 0.5  # of the grey image where the mask is right
STRIPE = 4  # pixels of the stripes that show ignored pixels


def colour_mask(mask: Mask, palette: Colours) -> Pixels:
    """Return the mask in the colours of its classes, (h, w, 3); ignored pixels are white."""
    colours = np.full((256, 3), 255, np.uint8)
    colours[: len(palette)] = np.array(palette, np.uint8).reshape(-1, 3)
    coloured: Pixels = colours[mask]
    return coloured


def draw_mask(pixels: NDArray[Any], mask: Mask, palette: Colours, opacity: float = OPACITY) -> Pixels:
    """Return the image with the mask over it; ignored pixels show the image, with stripes."""
    image = as_rgb(pixels).astype(np.float32)
    drawn = (1 - opacity) * image + opacity * colour_mask(mask, palette)
    return _with_ignored(drawn, image, mask)


def draw_errors(pixels: NDArray[Any], predicted: Mask, target: Mask) -> Pixels:
    """Return the image in grey with the pixels that were predicted wrong in orange; ignored ones have stripes."""
    image = as_rgb(pixels).astype(np.float32)
    grey = RIGHT_BRIGHTNESS + RIGHT_CONTRAST * image.mean(axis=2, keepdims=True)
    wrong = (predicted != target)[:, :, None]
    drawn = np.where(wrong, 0.25 * grey + 0.75 * np.array(WRONG, np.float32), np.broadcast_to(grey, image.shape))
    return _with_ignored(drawn, grey, target)


def as_rgb(pixels: NDArray[Any]) -> Pixels:
    """Return pixels of any number of channels as (h, w, 3) uint8: grey as it is, of many channels the first three."""
    channels = pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, :1].repeat(3, axis=2)
    if channels.dtype == np.uint8:
        return channels
    rounded: Pixels = channels.round().clip(0, 255).astype(np.uint8)
    return rounded


def shrink_mask(mask: Mask, size: tuple[int, int]) -> Mask:
    """Return the mask at another size: each pixel has the class of the pixel under its centre."""
    rows = ((np.arange(size[0]) + 0.5) * mask.shape[0] / size[0]).astype(np.int64)
    columns = ((np.arange(size[1]) + 0.5) * mask.shape[1] / size[1]).astype(np.int64)
    shrunk: Mask = mask[rows[:, None], columns[None]]
    return shrunk


def _with_ignored(drawn: NDArray[np.float32], image: NDArray[np.float32], mask: Mask) -> Pixels:
    """Return the drawing with dark and light stripes over the image at ignored pixels."""
    ignored = mask == IGNORE
    if ignored.any():
        diagonal = np.arange(mask.shape[0])[:, None] + np.arange(mask.shape[1])
        stripes = np.where(diagonal // STRIPE % 2, 0.55, 0.85)[:, :, None]
        drawn = np.where(ignored[:, :, None], stripes * image, drawn)
    shown: Pixels = drawn.round().clip(0, 255).astype(np.uint8)
    return shown
