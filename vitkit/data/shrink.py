"""Pictures made smaller once, where training would otherwise decode all of their pixels again in every epoch."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from vitkit.data.decode import decode
from vitkit.data.sources.base import Picture
from vitkit.errors import DecodeError

QUALITY = 95      # of JPEGs
REDUCING_GAP = 2  # Pillow averages blocks of pixels first, to this many times the size: off by a fifth of a grey level

_LOSSLESS = (b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def shrink(picture: Picture, side: int) -> Picture:
    """The picture, its shorter side no longer than `side` pixels: upright, a PNG if it was in a lossless format, else a
    JPEG. The very same, if it is small enough, deeper than 8 bits, an array, or none that can be decoded."""
    if not isinstance(picture, bytes):
        return picture
    try:
        pixels = decode(picture)
    except DecodeError:
        return picture  # whoever trains on it is told why
    height, width, _ = pixels.shape
    if pixels.dtype != np.uint8 or min(height, width) <= side:
        return picture
    scale = side / min(height, width)
    small = Image.fromarray(pixels).resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC,
                                           reducing_gap=REDUCING_GAP)
    red, green, blue = small.split()
    if red.tobytes() == green.tobytes() == blue.tobytes():
        small = red
    buffer = io.BytesIO()
    if picture.startswith(_LOSSLESS):
        small.save(buffer, "PNG")
    else:
        small.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()
