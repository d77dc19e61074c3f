"""Masks in files of their own, one for each image."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.data.masks.class_table import ClassTable
from vitkit.data.masks.mask_file import decode_mask
from vitkit.data.sources.dataset import DataError, PackedStrings
from vitkit.data.sources.file_tree import FileStore, reason
from vitkit.errors import DecodeError
from vitkit.text import printable


@dataclass(frozen=True, eq=False)
class FileMasks:
    """The masks of the images of a split."""

    files: FileStore
    names: PackedStrings  # of the files, for messages
    table: ClassTable

    def mask_name(self, row: int) -> str:
        return self.names[row]

    def mask_content(self, row: int) -> bytes:
        return self.files.read(row)

    def read_mask(self, row: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        name = printable(self.names[row])
        try:
            stored = decode_mask(self.files.read(row))
            if stored.lossy:
                raise DecodeError("it is a JPEG file, and JPEG changes values near edges; save masks as PNG")
            check_mask_size(stored.size, size)
            return self.table.classes_of(stored)
        except DecodeError as error:
            raise mask_error(name, str(error)) from error
        except (OSError, DataError) as error:  # DataError: an archive that is damaged
            raise mask_error(name, f"cannot be read: {reason(error)}") from error


def mask_error(name: str, reason: str, **details: str) -> DataError:
    """Return the error of one mask: its file, and what is wrong with it."""
    return DataError(f"mask {name}: {reason}.", **details)


def check_mask_size(mask_size: tuple[int, int], size: tuple[int, int]) -> None:
    """Raise a DecodeError where a mask is not as large as its image."""
    if mask_size == size:
        return
    turned = (
        "; one of them is on its side: the image is turned by its Exif orientation, and its mask is not"
        if mask_size == size[::-1]
        else "; resize the mask by nearest neighbour, so that no value changes"
    )
    raise DecodeError(
        f"it is {mask_size[0]} x {mask_size[1]} (height x width), its image {size[0]} x {size[1]}{turned}"
    )
