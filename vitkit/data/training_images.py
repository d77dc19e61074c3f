"""The images of train and val together, for a run that trains on both."""

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.sources.dataset import Data, DataError, ImageStore, PackedStrings, Split, StoredImage
from vitkit.data.sources.splits import training_split, validation_split


def has_labelled_test(data: Data) -> bool:
    """Return whether images other than those of val can be scored, so that val may be trained on."""
    return "test" in data.splits and data.splits["test"].labelled


def join_validation(data: Data) -> Data:
    """Return the data with the images of val among those to train on; only a test split is left to score."""
    name = validation_split(data)
    if name is None:
        return data
    if not has_labelled_test(data):
        raise DataError(
            f"{data.name} has no test split with labels, so val is scored and cannot be trained on.",
            try_="train_on_val = false, or a test split",
        )
    if data.multilabel:
        raise DataError(
            f"images of {data.name} have several labels; train_on_val is for one label per image.",
            try_="train_on_val = false, or train and val in one split called trainval",
        )
    training = training_split(data)
    splits = {other: split for other, split in data.splits.items() if other not in (training, name)}
    return replace(data, splits={training: _join(data.splits[training], data.splits[name]), **splits})


def _join(one: Split, other: Split) -> Split:
    """Return a split of the images of both, those of the first before those of the second."""
    groups = None
    if one.groups is not None and other.groups is not None:  # they are numbered over all splits
        groups = np.concatenate([one.groups, other.groups])
    keys = PackedStrings([*one.keys, *other.keys])
    labels = np.concatenate([one.labels, other.labels])
    store = JoinedStore(one.store, np.asarray(one.rows), other.store, np.asarray(other.rows))
    masks = JoinedMasks(one, other) if one.masks or other.masks else None
    return Split(keys, labels, store, np.arange(len(one) + len(other)), groups, masks=masks)


@dataclass(frozen=True)
class JoinedMasks:
    """The masks of two splits as one: those of the first, then those of the second."""

    one: Split
    other: Split

    def read_mask(self, row: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        return self._split(row).read_mask(self._index(row), size)

    def mask_name(self, row: int) -> str:
        return self._split(row).mask_name(self._index(row))

    def mask_content(self, row: int) -> bytes:
        return self._split(row).mask_content(self._index(row))

    def _split(self, row: int) -> Split:
        return self.one if row < len(self.one) else self.other

    def _index(self, row: int) -> int:
        return row if row < len(self.one) else row - len(self.one)


class JoinedStore:
    """The images of two stores as one: those of the first, then those of the second."""

    def __init__(
        self, first: ImageStore, first_rows: NDArray[np.int64], second: ImageStore, second_rows: NDArray[np.int64]
    ):
        self.stores: tuple[ImageStore, ...] = (first, second)
        self.rows = np.concatenate([first_rows, second_rows])
        self.in_first = len(first_rows)

    def read(self, row: int) -> StoredImage:
        return self._store(row).read(int(self.rows[row]))

    @property
    def is_remote(self) -> bool:
        return any(getattr(store, "is_remote", False) for store in self.stores)

    def read_ahead(self, rows: NDArray[np.int64]) -> "JoinedStore":
        """Return the same images with requests for these rows under way, where they are remote."""
        ahead = copy(self)
        second = rows >= self.in_first
        ahead.stores = tuple(
            (start(self.rows[own]) if (start := getattr(store, "read_ahead", None)) else None) or store
            for store, own in zip(self.stores, (rows[~second], rows[second]), strict=True)
        )
        return ahead

    def __getattr__(self, name: str) -> Any:
        """Offer `identity` and `sample` where both stores have them."""
        if name not in ("identity", "sample") or not all(hasattr(store, name) for store in self.stores):
            raise AttributeError(name)
        return lambda row: getattr(self._store(row), name)(int(self.rows[row]))

    def _store(self, row: int) -> ImageStore:
        return self.stores[row >= self.in_first]
