"""Make vitkit/data/fashion/*.png from the original files of Fashion-MNIST (Debian: dataset-fashion-mnist).

python -m tests.data.sources.make_fashion FOLDER_OF_IDX_FILES vitkit/data/fashion
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
from PIL import Image

SEED = 2017  # the year it was published
COUNTS = {"train": ("train", 600), "test": ("t10k", 100)}  # the original's name, images per class
COLUMNS = 100


def original(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Read (n, 28, 28) images and (n,) labels from the IDX format: a 16- or 8-byte header, then bytes."""
    with gzip.open(folder / f"{name}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return images, labels


def chosen(labels: np.ndarray, count: int) -> np.ndarray:
    """Return `count` indices of each class, class by class, in the original's order."""
    random = np.random.default_rng(SEED)
    return np.concatenate(
        [np.sort(random.choice(np.flatnonzero(labels == label), count, replace=False)) for label in range(10)]
    )


def mosaic(images: np.ndarray) -> np.ndarray:
    return images.reshape(-1, COLUMNS, 28, 28).swapaxes(1, 2).reshape(-1, COLUMNS * 28)


def main(source: Path, target: Path) -> None:
    for split, (name, count) in COUNTS.items():
        images, labels = original(source, name)
        Image.fromarray(mosaic(images[chosen(labels, count)])).save(target / f"{split}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
