"""`fashion`: 7,000 pictures of Fashion-MNIST inside the package, enough to try everything without a download.

Two mosaics, 100 pictures a row, sorted by class: place is label (tests/data/sources/make_fashion.py made them).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.sources.assemble import Part, assemble
from vitkit.data.sources.base import Data

CLASSES = (
    "t-shirt or top",
    "trouser",
    "pullover",
    "dress",
    "coat",  # the original's labels 0 to 9
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
SIDE, COLUMNS = 28, 100
NAME = "fashion"


class FashionPictures:
    def __init__(self, split: str) -> None:
        self.split = split

    def read(self, row: int) -> NDArray[np.uint8]:
        return _pictures(self.split)[row].copy()


def open_fashion() -> Data:
    parts = {}
    for split in ("train", "test"):
        count = len(_pictures(split))
        labels = [CLASSES[row * len(CLASSES) // count] for row in range(count)]
        keys = [f"{split}/{label}/{row % (count // len(CLASSES)):03d}" for row, label in enumerate(labels)]
        parts[split] = Part(keys, FashionPictures(split), labels)
    return assemble(NAME, NAME, parts)


@cache
def _pictures(split: str) -> NDArray[np.uint8]:
    """(pictures, 28, 28, 1); once per process."""
    with (files("vitkit.data") / "fashion" / f"{split}.png").open("rb") as file, Image.open(file) as image:
        mosaic = np.asarray(image)  # (rows·28, 100·28)
    grid = mosaic.reshape(-1, SIDE, COLUMNS, SIDE).swapaxes(1, 2)
    return np.ascontiguousarray(grid).reshape(-1, SIDE, SIDE, 1)
