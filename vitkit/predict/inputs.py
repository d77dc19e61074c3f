"""An image in any form, a path, bytes, an open file, a PIL image or an array → pixels, and what a model takes of it.

preprocess = vitkit.preprocess(model)
logits = model(torch.stack([preprocess("cat.jpg"), preprocess(pil_image)]))
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitkit.data.bounded_read import read_image_file
from vitkit.data.decode import decode
from vitkit.data.sources.dataset import PackedStrings, Split
from vitkit.data.sources.image_paths import find_images, names_several, unlabelled_split
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError, DecodeError
from vitkit.model.build import Model
from vitkit.storage.failures import StorageError
from vitkit.storage.urls import normalised, redacted


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
    return decode(content_of(image), channels=channels)


def content_of(image: ImageInput) -> bytes | NDArray[Any] | Image.Image:
    """Return what `decode` takes of an image: its encoded bytes, or the array or PIL image itself."""
    if isinstance(image, str | os.PathLike):
        return _read(image)
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, Image.Image | np.ndarray):
        return image
    if isinstance(image, BinaryFile):
        return _read_open(image)
    raise not_an_image(image)


@dataclass(frozen=True)
class InputStore:
    """Images in any form as an ImageStore, from which a split reads them."""

    images: Sequence[ImageInput]

    def read(self, row: int) -> Any:
        return content_of(self.images[row])


def as_split(images: Sequence[ImageInput]) -> Split:
    """Return images in any form as a split without labels; its keys are the names of files, or positions."""
    if all(isinstance(image, str | os.PathLike) for image in images):
        return unlabelled_split([normalised(path) for path in images])  # type: ignore[arg-type]
    names = PackedStrings(redacted(file_name(image) or f"image {index}") for index, image in enumerate(images))
    return Split(names, np.full(len(images), -1, np.int64), InputStore(images), np.arange(len(images)))


def expand(images: ImageInput | Iterable[ImageInput]) -> list[ImageInput]:
    """Return one image, or several, as a list, in which folders and patterns have become the files that they name.

    A file that does not exist stays in the list: reading it reports why it cannot be used.
    """
    if isinstance(images, SINGLE_IMAGE):
        return expand([images])
    if not isinstance(images, Iterable):
        raise not_an_image(images)
    expanded: list[ImageInput] = []
    for image in images:
        if not isinstance(image, SINGLE_IMAGE):
            raise not_an_image(image)
        several = isinstance(image, str | os.PathLike) and names_several(image)
        expanded += find_images([image]) if several else [image]  # type: ignore[list-item]
    return expanded


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


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return read_image_file(path)
    except StorageError:
        raise
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
