"""Masks from YOLO's text files: a line per object, `class x y x y …` with coordinates from 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitkit.data.masks.file_masks import mask_error
from vitkit.data.masks.polygons import rasterise
from vitkit.data.sources.dataset import DataError, PackedStrings
from vitkit.errors import DecodeError
from vitkit.stored_json import read_bytes
from vitkit.text import printable

MOST_BYTES = 64 << 20
BOX = 5  # numbers of a line: class, centre, width, height
_EDGE = 0.05  # how far a point may be outside its image


@dataclass(frozen=True, eq=False)
class YoloMasks:
    """The masks of the images of a split; pixels without an object are class 0, later lines go over earlier ones."""

    root: str
    paths: PackedStrings  # relative, "" for an image without a file
    classes: dict[int, int]  # YOLO's number → class
    origin: str  # the file that names the classes

    def mask_name(self, row: int) -> str:
        return self.paths[row]

    def mask_content(self, row: int) -> bytes:
        return "\n".join(read_lines(Path(self.root, self.paths[row]))).encode()

    def read_mask(self, row: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        name = printable(self.paths[row])
        mask = np.zeros(size, np.uint8)
        for number, line in enumerate(read_lines(Path(self.root, self.paths[row])), 1):
            if line.strip():
                try:
                    self._draw(mask, line.split())
                except DecodeError as error:
                    raise mask_error(f"{name}, line {number}", str(error)) from error
        return mask

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


def read_lines(path: Path) -> list[str]:
    """Return the lines of a label file; a DataError says why it cannot be read."""
    try:
        return read_bytes(path, error=DataError, most=MOST_BYTES).decode("ascii", "replace").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{path} is not there any more.") from error
