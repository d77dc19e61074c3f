"""A picture in whatever form it is at hand, a path, bytes, a PIL image, an array → pixels of the one decoder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.decode import PIXEL_LIMIT, decode
from vitkit.errors import ConfigError, DecodeError

Given = str | os.PathLike[str] | bytes | bytearray | memoryview | Image.Image | NDArray[Any]


def pixels_of(picture: Given, *, channels: int = 3, pixel_limit: int = PIXEL_LIMIT) -> NDArray[Any]:
    """(height, width, channels), uint8 or float32 on 0 to 255; what cannot be read is a DecodeError with the reason.

    An array is (height, width) or (height, width, channels): uint8, uint16, or floats by their range, as in a .npy.
    """
    content: bytes | NDArray[Any] | Image.Image
    if isinstance(picture, str | os.PathLike):
        content = _read(Path(picture))
    elif isinstance(picture, bytes | bytearray | memoryview):
        content = bytes(picture)
    elif isinstance(picture, Image.Image | np.ndarray):
        content = picture
    else:
        raise ConfigError(f"a picture cannot be of the type {type(picture).__name__}",
                          try_="a path, bytes, a PIL image, or an array (height, width, channels)")
    return decode(content, channels=channels, pixel_limit=pixel_limit)


def name_of(picture: Given) -> str | None:
    """What a message calls it; only files have a name."""
    return os.fspath(picture) if isinstance(picture, str | os.PathLike) else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte in it
        raise DecodeError((error.strerror if isinstance(error, OSError) else str(error)) or "unreadable") from error
