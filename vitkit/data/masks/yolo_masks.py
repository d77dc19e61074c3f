"""Masks from YOLO's text files: a line per object, `class x y x y …` with coordinates from 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.data.masks.file_masks import mask_error
from vitkit.data.masks.polygons import rasterise
from vitkit.data.sources.dataset import PackedStrings
from vitkit.data.sources.file_tree import FileStore, reason
from vitkit.errors import DecodeError, VitkitError
from vitkit.text import printable

MOST_BYTES = 64 << 20
BOX = 5  # numbers of a line: class, centre, width, height
_EDGE = 0.05  # how far a point may be outside its image


@dataclass(frozen=True, eq=False)
class YoloMasks:
    """The masks of the images of a split; pixels without an object are class 0, later lines go over earlier ones."""

    files: FileStore
    names: PackedStrings  # of the files, for messages
    classes: dict[int, int]  # YOLO's number → class
    origin: str  # the file that names the classes

    def mask_name(self, row: int) -> str:
        return self.names[row]

    def mask_content(self, row: int) -> bytes:
        return "\n".join(self._lines(row)).encode()

    def read_mask(self, row: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        name = printable(self.names[row])
        mask = np.zeros(size, np.uint8)
        for number, line in enumerate(self._lines(row), 1):
            if line.strip():
                try:
                    self._draw(mask, line.split())
                except DecodeError as error:
                    raise mask_error(f"{name}, line {number}", str(error)) from error
        return mask

    def _lines(self, row: int) -> list[str]:
        """Return the lines of a file; a DataError says why it cannot be read."""
        try:
            return lines_of(self.files.read_at_most(row, MOST_BYTES))
        except (OSError, VitkitError) as error:
            raise mask_error(printable(self.names[row]), f"cannot be read: {reason(error)}") from error

    def _draw(self, mask: NDArray[np.uint8], words: list[str]) -> None:
        try:
            number, *values = map(float, words)
        except ValueError as error:
            raise DecodeError(f"it is not numbers: {printable(' '.join(words)[:60])}") from error
        if len(words) == BOX:
            raise DecodeError("it is a box (five numbers); boxes are for detection, which vitkit does not do")
        if number not in self.classes:
            raise DecodeError(f"its class {words[0]} is none of those in {self.origin}")
        outside = [value for value in values if not -_EDGE <= value <= 1 + _EDGE]
        if outside:
            raise DecodeError(f"it has the coordinate {outside[0]:g}; they are from 0 to 1, as shares of the image")
        height, width = mask.shape
        scaled = [value * side for value, side in zip(values, (width, height) * len(values), strict=False)]
        mask[rasterise([scaled], (height, width))] = self.classes[int(number)]


def lines_of(content: bytes) -> list[str]:
    """Return the lines of a label file."""
    return content.decode("ascii", "replace").splitlines()
