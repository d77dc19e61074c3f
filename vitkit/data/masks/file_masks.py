"""Masks in files of their own, one for each image."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.data.bounded_read import read_image_file
from vitkit.data.masks.class_table import ClassTable
from vitkit.data.masks.mask_file import read_mask_file
from vitkit.data.sources.dataset import DataError, PackedStrings
from vitkit.errors import DecodeError
from vitkit.storage.urls import join
from vitkit.text import printable


@dataclass(frozen=True, eq=False)
class FileMasks:
    """The masks of the images of a split; paths are relative to the root, "" for an image without a mask."""

    root: str
    paths: PackedStrings
    table: ClassTable

    def mask_name(self, row: int) -> str:
        return self.paths[row]

    def mask_content(self, row: int) -> bytes:
        return read_image_file(join(self.root, self.paths[row]))

    def read_mask(self, row: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        name = printable(self.paths[row])
        try:
            stored = read_mask_file(join(self.root, self.paths[row]))
            check_mask_size(stored.size, size)
            return self.table.classes_of(stored)
        except DecodeError as error:
            raise mask_error(name, str(error)) from error
        except OSError as error:
            raise mask_error(name, f"cannot be read: {error.strerror or error}") from error


def mask_error(name: str, reason: str, **details: str) -> DataError:
    """Return the error of one mask: its file, and what is wrong with it."""
    return DataError(f"mask {name}: {reason}.", **details)


def check_mask_size(found: tuple[int, int], size: tuple[int, int]) -> None:
    """Raise a DecodeError where a mask is not as large as its image."""
    if found == size:
        return
    turned = (
        "; one of them is on its side: the image is turned by its Exif orientation, and its mask is not"
        if found == size[::-1]
        else "; masks are resized by nearest neighbour, so that no value changes"
    )
    raise DecodeError(f"it is {found[0]} x {found[1]} (height x width), its image {size[0]} x {size[1]}{turned}")
