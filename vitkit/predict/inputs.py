"""A picture in whatever form it is at hand, a path, bytes, an open file, a PIL image, an array → pixels of the one
decoder."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.decode import decode
from vitkit.errors import ConfigError, DecodeError


@runtime_checkable
class Open(Protocol):
    """A file opened with "rb", io.BytesIO, the answer of a web request."""

    def read(self) -> bytes: ...


Given = str | os.PathLike[str] | bytes | bytearray | memoryview | Open | Image.Image | NDArray[Any]
# one picture, or what is meant as one; an open file too, which would else be taken for many, line by line
ONE = str | os.PathLike | bytes | bytearray | memoryview | Open | Image.Image | np.ndarray  # type: ignore[type-arg]
ACCEPTED = 'a path, bytes, a file opened with "rb", a PIL image, or an array (height, width, channels)'


def pixels_of(picture: Given, *, channels: int = 3) -> NDArray[Any]:
    """(height, width, channels), uint8 or float32 on 0 to 255; what cannot be read is a DecodeError with the reason.

    An array is (height, width) or (height, width, channels): uint8, uint16, or floats by their range, as in a .npy.
    """
    content: bytes | NDArray[Any] | Image.Image
    if isinstance(picture, str | os.PathLike):
        content = _read(picture)
    elif isinstance(picture, bytes | bytearray | memoryview):
        content = bytes(picture)
    elif isinstance(picture, Image.Image | np.ndarray):
        content = picture
    elif isinstance(picture, Open):
        content = _read_open(picture)
    else:
        raise no_picture(picture)
    return decode(content, channels=channels)


def no_picture(given: object) -> ConfigError:
    return ConfigError(f"a picture cannot be of the type {type(given).__name__}", try_=ACCEPTED)


def name_of(picture: Given) -> str | None:
    """What a message calls it; only files have a name."""
    named = picture if isinstance(picture, str | os.PathLike) else getattr(picture, "name", None)
    return os.fspath(named) if isinstance(named, str | os.PathLike) else None


def is_url(word: str) -> bool:
    return re.match(r"[a-z][a-z0-9+.-]+://", word, re.IGNORECASE) is not None


def refuse_urls(words: Sequence[str]) -> None:
    """Before they are taken for paths, which would lose a slash and then not exist."""
    for word in filter(is_url, words):
        raise ConfigError(f"{word} is a URL, and those are not read.", try_="download it first, then name the file")


def _read(path: str | os.PathLike[str]) -> bytes:
    if is_url(os.fspath(path)):
        raise DecodeError("URLs are not read; download it first")
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte in it
        raise _unreadable(error) from error


def _read_open(file: Any) -> bytes:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a stream cannot, and is where it should be
        file.seek(0)  # as Pillow does: whoever has just written a picture into it is at its end
    content: Any = ""
    try:
        content = file.read()
    except UnicodeDecodeError:  # a picture opened as text
        pass
    except (OSError, ValueError) as error:  # ValueError: a file that was closed
        raise _unreadable(error) from error
    if not isinstance(content, bytes | bytearray | memoryview):
        raise ConfigError(
            f"a picture cannot be read from a {type(file).__name__}: it gives {type(content).__name__}, not bytes",
            try_='open(…, "rb")',
        )
    return bytes(content)


def _unreadable(error: OSError | ValueError) -> DecodeError:
    return DecodeError((error.strerror if isinstance(error, OSError) else str(error)) or "unreadable")
