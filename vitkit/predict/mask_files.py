"""A mask as a PNG: class numbers with a palette, so that viewers show colours and programs read numbers.

`np.asarray(Image.open("mask.png"))` is the mask; `vitkit check` and `vitkit fit` read such files as data.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.atomic import replacing
from vitkit.data.masks.palette import Palette
from vitkit.errors import ConfigError
from vitkit.pages.mask_overlay import draw_mask

IGNORED_COLOUR = (255, 255, 255)  # of number 255
OVERLAY_QUALITY = 90


def mask_image(mask: NDArray[np.uint8], palette: Palette) -> Image.Image:
    """Return the mask as an image of mode P."""
    image = Image.fromarray(np.ascontiguousarray(mask))
    colours = [*palette, *[IGNORED_COLOUR] * (256 - len(palette))]
    image.putpalette([value for colour in colours for value in colour])  # which makes it mode P
    return image


def write_mask(path: Path, mask: NDArray[np.uint8], palette: Palette) -> None:
    """Write a mask as PNG, completely or not at all, and the folder that it is in."""
    _save(path, mask_image(mask, palette), format="PNG", optimize=False)


def write_overlay(path: Path, pixels: NDArray[Any], mask: NDArray[np.uint8], palette: Palette) -> None:
    """Write the image with the mask over it as JPEG."""
    _save(path, Image.fromarray(draw_mask(pixels, mask, palette)), format="JPEG", quality=OVERLAY_QUALITY)


def class_shares(mask: NDArray[np.uint8], classes: Sequence[str]) -> dict[str, float]:
    """Return the share of pixels of each class that the mask has, the largest first."""
    counts = np.bincount(mask.ravel(), minlength=len(classes))[: len(classes)]
    order = np.argsort(-counts, kind="stable")
    return {classes[number]: float(counts[number] / mask.size) for number in order.tolist() if counts[number]}


def _save(path: Path, image: Image.Image, **options: Any) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be made: {error.strerror}.", try_="another --out") from error
    with replacing(path, ConfigError) as temporary:
        image.save(temporary, **options)
