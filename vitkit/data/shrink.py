"""Pictures made smaller once, where training would otherwise decode all of their pixels again in every epoch."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image

from vitkit.data.decode import decode
from vitkit.data.resize import resize
from vitkit.data.sources.base import Picture
from vitkit.errors import DecodeError

QUALITY, LONGEST = 95, 65_500  # of JPEGs: how good, and how many pixels along a side at most

_ARRAY = b"\x93NUMPY"


def shrink(picture: Picture, side: int) -> Picture:
    """The picture, its shorter side no longer than `side` pixels, upright: a JPEG if it was one or a HEIC, else a PNG,
    which loses nothing. The very same, if it is small enough, deeper than 8 bits, an array, or cannot be decoded.
    """
    if not isinstance(picture, bytes) or picture.startswith(_ARRAY):
        return picture
    try:
        pixels = decode(picture)
    except DecodeError:
        return picture  # whoever trains on it is told why
    height, width, _ = pixels.shape
    if pixels.dtype != np.uint8 or min(height, width) <= side:
        return picture
    scale = side / min(height, width)
    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = resize(planes, (round(height * scale), round(width * scale)), "bicubic")[0]
    small = Image.fromarray(resized.permute(1, 2, 0).contiguous().numpy())
    red, green, blue = small.split()
    if red.tobytes() == green.tobytes() == blue.tobytes():
        small = red
    buffer = io.BytesIO()
    if _lossy(picture) and max(small.size) <= LONGEST:
        small.save(buffer, "JPEG", quality=QUALITY)
    else:
        small.save(buffer, "PNG")
    return buffer.getvalue()


def _lossy(picture: bytes) -> bool:
    """JPEGs, HEIC, AVIF, and WebP of the kind that is."""
    return (
        picture.startswith(b"\xff\xd8\xff")
        or picture[4:8] == b"ftyp"
        or (picture.startswith(b"RIFF") and picture[12:16] == b"VP8 ")
    )
