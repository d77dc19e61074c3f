"""The answer about one image's mask, encoded at once: no mask waits in memory for its response."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vitkit.compute.segment import PredictedMask
from vitkit.data.masks.palette import Palette
from vitkit.data.masks.rle import CocoRLE, encode_rle
from vitkit.predict.mask_files import mask_image

MaskEncoding = Literal["png", "rle", "none"]
ENCODINGS: tuple[MaskEncoding, ...] = get_args(MaskEncoding)


@dataclass(frozen=True)
class MaskAnswer:
    """The size of an image, the pixels of each class that it has, and its encoded mask; or an error instead."""

    size: tuple[int, int] = (0, 0)  # height, width
    windows: int = 1
    pixels: tuple[tuple[int, int], ...] = ()  # (class number, pixels), the most pixels first
    png: bytes | None = None
    rles: tuple[CocoRLE, ...] | None = None  # in the order of `pixels`
    error: str | None = None


def answer_of(predicted: PredictedMask, palette: Palette, encoding: MaskEncoding) -> MaskAnswer:
    mask = predicted.mask
    counts = np.bincount(mask.ravel(), minlength=len(palette))
    order = [number for number in np.argsort(-counts, kind="stable").tolist() if counts[number]]
    return MaskAnswer(
        size=(mask.shape[0], mask.shape[1]),
        windows=predicted.windows,
        pixels=tuple((number, int(counts[number])) for number in order),
        png=encode_mask(mask, palette) if encoding == "png" else None,
        rles=tuple(encode_rle(mask == number) for number in order) if encoding == "rle" else None,
    )


def encode_mask(mask: NDArray[np.uint8], palette: Palette) -> bytes:
    """Return the mask as PNG: class numbers with a palette."""
    file = io.BytesIO()
    mask_image(mask, palette).save(file, "PNG")
    return file.getvalue()
