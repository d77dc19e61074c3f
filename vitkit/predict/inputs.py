"""An image in any form, a path, bytes, an open file, a PIL image or an array → pixels, and what a model takes of it.

preprocess = vitkit.preprocess(model)
logits = model(torch.stack([preprocess("cat.jpg"), preprocess(pil_image)]))
"""

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitkit.data.decode import decode
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError, DecodeError
from vitkit.model.build import Model


@runtime_checkable
class BinaryFile(Protocol):
    """A file opened with "rb", io.BytesIO or the response to a web request."""

    def read(self) -> bytes: ...


ImageInput = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryFile | Image.Image | NDArray[Any]
# an open file is one image too, although it could be iterated line by line
SINGLE_IMAGE = str | os.PathLike | bytes | bytearray | memoryview | BinaryFile | Image.Image | np.ndarray  # type: ignore[type-arg]
ACCEPTED = 'a path, bytes, a file opened with "rb", a PIL image, or an array (height, width, channels)'


def pixels_of(image: ImageInput, *, channels: int = 3) -> NDArray[Any]:
    """Return (height, width, channels), uint8 or float32 on 0 to 255, or raise a DecodeError with the reason.

    An array is (height, width) or (height, width, channels): uint8, uint16, or floats by their range, as in a .npy.
    """
    content: bytes | NDArray[Any] | Image.Image
    if isinstance(image, str | os.PathLike):
        content = _read(image)
    elif isinstance(image, bytes | bytearray | memoryview):
        content = bytes(image)
    elif isinstance(image, Image.Image | np.ndarray):
        content = image
    elif isinstance(image, BinaryFile):
        content = _read_open(image)
    else:
        raise not_an_image(image)
    return decode(content, channels=channels)


def not_an_image(value: object) -> ConfigError:
    return ConfigError(f"an image cannot be of the type {type(value).__name__}", try_=ACCEPTED)


def file_name(image: ImageInput) -> str | None:
    """Return the name of an image for messages; only files have one."""
    named = image if isinstance(image, str | os.PathLike) else getattr(image, "name", None)
    return os.fspath(named) if isinstance(named, str | os.PathLike) else None


@dataclass(frozen=True)
class Preprocess:
    """The preprocessing of a model's evaluation: resize, crop and normalise. DataLoader workers can unpickle it."""

    transform: EvalTransform
    channels: int

    def __call__(self, image: ImageInput) -> Tensor:
        """A path, bytes, an open file, a PIL image or an array → (C, height, width) float32, upright."""
        return self.transform(pixels_of(image, channels=self.channels))


def preprocess(model: Model) -> Preprocess:
    """Return the preprocessing of the model as it is now: after `resize`, for its new image size."""
    transform = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
    return Preprocess(transform, model.config.channels)


def is_url(argument: str) -> bool:
    return re.match(r"[a-z][a-z0-9+.-]+://", argument, re.IGNORECASE) is not None


def refuse_urls(arguments: Sequence[str]) -> None:
    """Raise an error for URLs, which would lose a slash as paths and then not exist."""
    for argument in filter(is_url, arguments):
        raise ConfigError(
            f"{argument} is a URL; vitkit reads local files only.", try_="download it first, then name the file"
        )


def _read(path: str | os.PathLike[str]) -> bytes:
    if is_url(os.fspath(path)):
        raise DecodeError("this is a URL; download it first")
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte in it
        raise _unreadable(error) from error


def _read_open(file: Any) -> bytes:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a stream cannot, and is at its beginning
        file.seek(0)  # as Pillow does: after writing an image into it, its position is at the end
    content: Any = ""
    try:
        content = file.read()
    except UnicodeDecodeError:  # an image opened as text
        pass
    except (OSError, ValueError) as error:  # ValueError: a file that was closed
        raise _unreadable(error) from error
    if not isinstance(content, bytes | bytearray | memoryview):
        raise ConfigError(
            f"an image cannot be read from a {type(file).__name__}: it gives {type(content).__name__}, not bytes",
            try_='open(…, "rb")',
        )
    return bytes(content)


def _unreadable(error: OSError | ValueError) -> DecodeError:
    return DecodeError((error.strerror if isinstance(error, OSError) else str(error)) or "unreadable")
