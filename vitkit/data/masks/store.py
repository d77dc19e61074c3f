"""Stores of masks: what reads the mask of one image, and a store with other class numbers around another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vitkit.data.masks.ignore import IGNORE


class MaskStore(Protocol):
    """A store that reads the mask of one image by its row in the image store; pickled as that one is.

    A mask is uint8 (height, width): a class number for each pixel, or IGNORE. A store may have `mask_name(row)`: the
    file of the mask, for messages; and `mask_content(row)`: bytes that differ where the stored mask does.
    """

    def read_mask(self, row: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        """Return the mask of an image of this (height, width), decoded upright; a DataError names the mask's file."""
        ...


@dataclass(frozen=True)
class RenumberedMasks:
    masks: MaskStore
    numbers: NDArray[np.uint8]  # (256,) the new number of each old one

    @classmethod
    def of(cls, masks: MaskStore, target: NDArray[np.int64]) -> RenumberedMasks:
        """Renumber class k to target[k]; pixels of classes with the target -1 are ignored."""
        numbers = np.full(256, IGNORE, np.uint8)
        numbers[: len(target)] = np.where(target < 0, IGNORE, target)
        return cls(masks, numbers)

    def read_mask(self, row: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        return self.numbers[self.masks.read_mask(row, size)]

    def __getattr__(self, name: str) -> Any:
        """Offer what else the store has."""
        if name not in ("mask_name", "mask_content"):  # no others: it is pickled
            raise AttributeError(name)
        return getattr(self.masks, name)
