"""What every source becomes: `Data`, its splits, and pictures that are read by number."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitkit.errors import VitkitError

Picture = bytes | NDArray[Any]  # as encoded, or pixels (height, width, channels) of uint8, uint16 or floats


class DataError(VitkitError):
    """A source that cannot be used, or a picture that cannot be read from it."""


class Pictures(Protocol):
    """A store that reads one picture by its row; it travels to other processes and opens its files there."""

    def read(self, row: int) -> Picture: ...


class Names(Sequence[str]):
    """Many strings as one block: a million of them travel to workers at once and are not copied by counting references.

    surrogatepass: file names need not be text, and whatever Python made of them has to come back unchanged.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        encoded = [name.encode("utf-8", "surrogatepass") for name in names]
        self.text = b"".join(encoded)
        self.stops = np.cumsum([0, *map(len, encoded)], dtype=np.int64)[1:]
        self.starts = np.concatenate([[0], self.stops[:-1]]).astype(np.int64)[: len(self.stops)]

    def __len__(self) -> int:
        return len(self.stops)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Names: ...
    def __getitem__(self, index: int | slice) -> str | Names:
        if isinstance(index, slice):
            return self.select(np.arange(len(self))[index])
        return self.text[self.starts[index] : self.stops[index]].decode("utf-8", "surrogatepass")

    @property
    def are_text(self) -> bool:
        try:
            return self.text.decode("utf-8") is not None
        except UnicodeDecodeError:
            return False

    def select(self, indices: NDArray[np.int64]) -> Names:
        chosen = Names()
        chosen.text, chosen.starts, chosen.stops = self.text, self.starts[indices], self.stops[indices]
        return chosen


def composed(name: str) -> str:
    """Names that Unicode calls canonically equivalent are the same text: archives from Macs hold "ü" in two parts."""
    return unicodedata.normalize("NFC", name)


@dataclass(frozen=True, eq=False)
class Split:
    keys: Names  # a name per picture for messages: a path, a shard's member, a row
    labels: NDArray[Any]  # (n,) int64 class indices, -1 where unlabelled; (n, classes) bool when multi-label
    pictures: Pictures
    rows: NDArray[np.int64]  # where in `pictures` each one is

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> Picture:
        """The picture as it is stored. One that cannot be read is a DataError with its name and the reason."""
        try:
            return self.pictures.read(int(self.rows[index]))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise DataError(f"{self.keys[index]} cannot be read: {reason}.") from error

    def select(self, indices: ArrayLike) -> Split:
        """These pictures in this order; indices or a mask."""
        chosen = np.asarray(indices)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        return Split(self.keys.select(chosen), self.labels[chosen], self.pictures, self.rows[chosen])

    def per_class(self, classes: int) -> NDArray[np.int64]:
        """(classes,) pictures of each."""
        if self.labels.ndim == 2:
            return self.labels.sum(axis=0)
        return np.bincount(self.labels[self.labels >= 0], minlength=classes)

    @property
    def labelled(self) -> bool:
        return self.labels.ndim == 2 or bool((self.labels >= 0).any())


@dataclass(frozen=True)
class Data:
    name: str  # as the user wrote it
    kind: str  # "class folders", "flat folder", "manifest", "arrays", "shards", "fashion", …
    classes: tuple[str, ...]  # composed, sorted, frozen once over all splits; () when unlabelled
    splits: dict[str, Split]  # among train, trainval, val, test; a source without splits has the single one "all"
    notes: tuple[str, ...]  # what was left out or looks odd, in words
    multilabel: bool = False

    def with_classes(self, classes: Sequence[str]) -> tuple[Data, tuple[str, ...], tuple[str, ...]]:
        """The same pictures with labels that count in `classes`, a model's: matched by name, never by place.

        Also the names that only the model has, and those that only the data have. Pictures of the latter become
        unlabelled (-1), or lose that label.
        """
        exact = {name: index for index, name in enumerate(classes)}
        place = {composed(name): index for name, index in exact.items()} | exact
        target = np.array([place.get(name, place.get(composed(name), -1)) for name in self.classes], dtype=np.int64)
        splits = {}
        for split_name, split in self.splits.items():
            if split.labels.ndim == 2:
                labels = np.zeros((len(split), len(classes)), dtype=bool)
                for column in np.flatnonzero(target >= 0):
                    labels[:, target[column]] |= split.labels[:, column]
            else:
                labels = np.append(target, -1)[split.labels]  # the last place is that of -1
            splits[split_name] = replace(split, labels=labels)
        here = set(map(composed, self.classes))
        missing = tuple(name for name in classes if composed(name) not in here)
        extra = tuple(name for name, index in zip(self.classes, target, strict=True) if index < 0)
        return replace(self, classes=tuple(classes), splits=splits), missing, extra
