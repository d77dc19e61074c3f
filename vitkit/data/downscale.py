"""Downscale large images once, where training would otherwise decode all of their pixels in every epoch."""

import io

import numpy as np
import torch
from PIL import Image

from vitkit.data.decode import decode
from vitkit.data.resize import resize
from vitkit.data.sources.dataset import StoredImage
from vitkit.errors import DecodeError

QUALITY, MAX_JPEG_SIDE = 95, 65_500  # of JPEGs

_ARRAY = b"\x93NUMPY"


def downscale(content: StoredImage, side: int) -> StoredImage:
    """Downscale the image until its shorter side has at most `side` pixels, and apply its Exif orientation.

    A lossy format becomes JPEG, any other PNG. An image that is small enough, deeper than 8 bits, an array, or cannot
    be decoded is returned as it is.
    """
    if not isinstance(content, bytes) or content.startswith(_ARRAY):
        return content
    try:
        pixels = decode(content)
    except DecodeError:
        return content  # training reports why
    height, width, _ = pixels.shape
    if pixels.dtype != np.uint8 or min(height, width) <= side:
        return content
    scale = side / min(height, width)
    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = resize(planes, (round(height * scale), round(width * scale)), "bicubic")[0]
    small = Image.fromarray(resized.permute(1, 2, 0).contiguous().numpy())
    red, green, blue = small.split()
    if red.tobytes() == green.tobytes() == blue.tobytes():
        small = red
    buffer = io.BytesIO()
    if _is_lossy(content) and max(small.size) <= MAX_JPEG_SIDE:
        small.save(buffer, "JPEG", quality=QUALITY)
    else:
        small.save(buffer, "PNG")
    return buffer.getvalue()


def _is_lossy(content: bytes) -> bool:
    """Return whether the image is a JPEG, HEIC, AVIF or lossy WebP."""
    return (
        content.startswith(b"\xff\xd8\xff")
        or content[4:8] == b"ftyp"
        or (content.startswith(b"RIFF") and content[12:16] == b"VP8 ")
    )
