"""`fashion`: 7,000 images of Fashion-MNIST inside the package, enough to try everything without a download.

They are two mosaics, 100 images a row, sorted by class (made by tests/data/sources/make_fashion.py).
"""

from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.sources.class_labels import RawSplit, build_data
from vitkit.data.sources.dataset import Data

CLASSES = tuple("t-shirt or top, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot".split(", "))
SIDE, COLUMNS = 28, 100
NAME = "fashion"


class FashionImages:
    def __init__(self, split: str) -> None:
        self.split = split

    def read(self, row: int) -> NDArray[np.uint8]:
        return _images(self.split)[row].copy()


def open_fashion() -> Data:
    splits = {}
    for split in ("train", "test"):
        count = len(_images(split))
        labels = [CLASSES[row * len(CLASSES) // count] for row in range(count)]
        keys = [f"{split}/{label}/{row % (count // len(CLASSES)):03d}" for row, label in enumerate(labels)]
        splits[split] = RawSplit(keys, FashionImages(split), labels)
    return build_data(NAME, NAME, splits)


@cache
def _images(split: str) -> NDArray[np.uint8]:
    """Return (images, 28, 28, 1), loaded once per process."""
    with (files("vitkit.data") / "fashion" / f"{split}.png").open("rb") as file, Image.open(file) as image:
        mosaic = np.asarray(image)  # (rows·28, 100·28)
    grid = mosaic.reshape(-1, SIDE, COLUMNS, SIDE).swapaxes(1, 2)
    return np.ascontiguousarray(grid).reshape(-1, SIDE, SIDE, 1)
