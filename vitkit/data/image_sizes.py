"""The size of the images of a split: medians over a seeded sample, from headers, without decoding."""

from dataclasses import dataclass

import numpy as np

from vitkit.data.decode import decoded_size
from vitkit.data.sources.dataset import DataError, Split
from vitkit.errors import DecodeError

SAMPLE = 200  # images: enough for a median, read in a fraction of a second


@dataclass(frozen=True, kw_only=True)
class DataSize:
    """The number of images of a split, and the medians of their heights, widths and shorter sides in pixels."""

    images: int
    height: int
    width: int
    short_side: int

    def __str__(self) -> str:
        return f"{self.images:,} images of {self.height} x {self.width} px"


def measure_size(split: Split, *, seed: int = 0) -> DataSize | None:
    """Return the size of a split, the same in every process; None where the sample has no readable header."""
    chosen = np.random.default_rng(seed).choice(len(split), min(SAMPLE, len(split)), replace=False)
    chosen = np.sort(chosen)
    ahead, sizes = split.read_ahead(chosen.tolist()), []
    for index in chosen:
        try:
            sizes.append(decoded_size(ahead.read(int(index))))
        except (DataError, DecodeError):  # training reports it
            continue
    if not sizes:
        return None
    heights, widths = np.array(sizes).T
    height, width, short_side = (int(np.median(side)) for side in (heights, widths, np.minimum(heights, widths)))
    return DataSize(images=len(split), height=height, width=width, short_side=short_side)
