"""`Data`, which every source becomes: its splits, their labels, and images that are read by index."""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from vitkit.data.masks.palette import default_palette
from vitkit.data.masks.store import MaskStore as MaskStore
from vitkit.data.masks.store import RenumberedMasks
from vitkit.data.sparse_labels import SparseLabels, SplitLabels
from vitkit.errors import VitkitError
from vitkit.storage.failures import StorageError

BLOCK = 1 << 20  # images at a time, where a step would need more memory than its result

StoredImage = bytes | NDArray[Any]  # as encoded, or pixels (height, width, channels) of uint8, uint16 or floats


class DataError(VitkitError):
    """A source that cannot be used, or an image that cannot be read from it."""


class ImageStore(Protocol):
    """A store that reads one image by its row; it is pickled to other processes and opens its files there.

    A store of files may have a method `identity(row)`: where the image is stored, its size and time of modification;
    and `sample(row)`: a few bytes that differ for most changes of the image, without reading all of it. A store that
    knows sizes without reading has `sizes(rows)`: (n,) the bytes of these images, 0 where one cannot be found. A remote
    one has `read_ahead(rows)`: a store whose requests for these rows are under way, or None where nothing is gained.
    """

    def read(self, row: int) -> StoredImage: ...


class PackedStrings(Sequence[str]):
    """Many strings in one block of bytes: a million of them are pickled at once, and reference counts copy no page.

    The block may be memory-mapped; a selection shares it, and has an index per string of its own.
    surrogatepass: file names need not be valid text, and have to come back unchanged.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        text, stops = bytearray(), array("q")  # without an object for each of a million strings
        for name in names:
            text += name.encode("utf-8", "surrogatepass")
            stops.append(len(text))
        self._keep(np.frombuffer(bytes(text), np.uint8), np.array(stops, dtype=np.int64))

    @classmethod
    def of_arrays(cls, text: NDArray[np.uint8], stops: NDArray[np.int64]) -> PackedStrings:
        """Return the strings whose bytes follow one another in `text`; string i ends before stops[i]."""
        packed = cls.__new__(cls)
        packed._keep(text, stops)
        return packed

    def _keep(self, text: NDArray[np.uint8], stops: NDArray[np.int64], chosen: NDArray[np.int64] | None = None) -> None:
        self.text, self.stops, self.chosen = text, stops, chosen  # chosen: which of the strings; None: all

    def __len__(self) -> int:
        return len(self.stops if self.chosen is None else self.chosen)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> PackedStrings: ...
    def __getitem__(self, index: int | slice) -> str | PackedStrings:
        if isinstance(index, slice):
            return self.select(np.arange(len(self))[index])
        row = range(len(self))[index]
        if self.chosen is not None:
            row = self.chosen[row]
        start = self.stops[row - 1] if row else 0
        return self.text[start : self.stops[row]].tobytes().decode("utf-8", "surrogatepass")

    def blocks(self) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """Yield blocks of strings in order, as the bytes of all of them and where each one stops."""
        for first in range(0, len(self), BLOCK):
            last = min(first + BLOCK, len(self))
            if self.chosen is None:
                start = int(self.stops[first - 1]) if first else 0
                stops = self.stops[first:last] - start
                yield self.text[start : start + int(stops[-1])], stops
                continue
            rows = self.chosen[first:last]
            starts = np.where(rows > 0, self.stops[rows - 1], 0)
            lengths = self.stops[rows] - starts
            stops = np.cumsum(lengths)
            yield self.text[np.repeat(starts - stops + lengths, lengths) + np.arange(stops[-1])], stops

    @property
    def are_text(self) -> bool:
        try:
            return self.text.tobytes().decode("utf-8") is not None
        except UnicodeDecodeError:
            return False

    def select(self, indices: NDArray[np.int64]) -> PackedStrings:
        selected = PackedStrings.__new__(PackedStrings)
        selected._keep(self.text, self.stops, indices if self.chosen is None else self.chosen[indices])
        return selected


class AllRows:
    """The rows 0, 1, 2, … of a store, without an array of them: that of 100 million takes 800 MB in each process."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.arange(self.count, dtype=dtype or np.int64)

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> int: ...
    @overload
    def __getitem__(self, index: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def __getitem__(self, index: int | np.integer[Any] | NDArray[np.int64]) -> int | NDArray[np.int64]:
        if isinstance(index, int | np.integer):
            return range(self.count)[int(index)]
        if len(index) and not 0 <= index.min() <= index.max() < self.count:
            raise IndexError(f"rows outside 0 to {self.count - 1}")
        return index


def nfc(name: str) -> str:
    """Normalise to NFC, which makes equivalent names equal: archives from Macs spell "ü" in two characters."""
    return unicodedata.normalize("NFC", name)


@dataclass(frozen=True, eq=False)
class Split:
    keys: PackedStrings  # a name per image for messages: a path, a shard's member, a row
    labels: SplitLabels  # (n,) int64 class indices, -1 where unlabelled; SparseLabels when multi-label
    store: ImageStore
    rows: NDArray[np.int64] | AllRows  # the row of each image in `store`
    groups: NDArray[np.int64] | None = None  # (n,) equal for images that stay on one side of any split; None: none do
    leaked: NDArray[np.uint8] | None = None  # (n,) vitkit.data.groups.Leak of each image; None: not compared
    masks: MaskStore | None = None  # of segmentation data, whose labels are 0 for images with a mask and -1 without

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> StoredImage:
        """Read the image as it is stored; if it cannot be read, the DataError has its name and the reason."""
        try:
            return self.store.read(int(self.rows[index]))
        except StorageError:  # of the store as a whole: no other image could be read either
            raise
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise DataError(f"{self.keys[index]} cannot be read: {reason}.") from error

    def read_mask(self, index: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        """Read the mask of an image of this (height, width); if it cannot be used, the DataError says which and why."""
        if self.masks is None or self.labels[index] != 0:
            raise DataError(f"{self.keys[index]} has no mask.")
        return self.masks.read_mask(int(self.rows[index]), size)

    def mask_name(self, index: int) -> str:
        """Return where the mask of an image is, for messages."""
        name = getattr(self.masks, "mask_name", None)
        return name(int(self.rows[index])) if name else f"the mask of {self.keys[index]}"

    def mask_content(self, index: int) -> bytes:
        """Return bytes that differ where the stored mask of an image does; none where it has no mask."""
        content = getattr(self.masks, "mask_content", None)
        return content(int(self.rows[index])) if content and self.labels[index] == 0 else b""

    def read_ahead(self, indices: Sequence[int]) -> Split:
        """Return the split with requests for these images under way, in their order, if they come over a network."""
        start = getattr(self.store, "read_ahead", None)
        store = None if start is None else start(self.rows[np.asarray(indices, np.int64)])
        return self if store is None else replace(self, store=store)

    @property
    def is_remote(self) -> bool:
        """Return whether reading an image is a request to a store, so that many readers at a time pay."""
        return bool(getattr(self.store, "is_remote", False))

    def select(self, indices: ArrayLike) -> Split:
        """Select images by indices, in their order, or by a mask."""
        chosen = np.asarray(indices)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        if len(chosen) and chosen.min() < 0:
            chosen = np.where(chosen < 0, chosen + len(self), chosen)  # as numpy counts from the end
        return Split(
            self.keys.select(chosen),
            self.labels[chosen],
            self.store,
            self.rows[chosen],
            None if self.groups is None else self.groups[chosen],
            None if self.leaked is None else self.leaked[chosen],
            self.masks,
        )

    def per_class(self, classes: int) -> NDArray[np.int64]:
        """Count the images of each class: (classes,)."""
        if isinstance(self.labels, SparseLabels):
            return self.labels.counts()
        counts = np.zeros(classes, np.int64)
        for labels in self._label_blocks():
            counts += np.bincount(labels[labels >= 0], minlength=classes)
        return counts

    def images_of(self, number: int) -> NDArray[np.int64]:
        """Return the indices of the images of one class."""
        if isinstance(self.labels, SparseLabels):
            return self.labels.images_of(number)
        return np.flatnonzero(self.labels == number)

    def rows_with_labels(self) -> NDArray[np.int64]:
        """Return the indices of labelled images; a multi-label image without a label says that none applies."""
        if isinstance(self.labels, SparseLabels):
            return np.arange(len(self))
        return np.flatnonzero(self.labels >= 0)

    def count_labelled(self) -> int:
        """Count the images that `rows_with_labels` returns, without a list of them."""
        if isinstance(self.labels, SparseLabels):
            return len(self)
        return sum(int(np.count_nonzero(labels >= 0)) for labels in self._label_blocks())

    @property
    def labelled(self) -> bool:
        return isinstance(self.labels, SparseLabels) or any(
            bool((labels >= 0).any()) for labels in self._label_blocks()
        )

    def _label_blocks(self) -> Iterator[NDArray[np.int64]]:
        assert not isinstance(self.labels, SparseLabels)
        return (self.labels[first : first + BLOCK] for first in range(0, len(self.labels), BLOCK))


@dataclass(frozen=True)
class Data:
    name: str  # as the user wrote it
    kind: str  # "class folders", "flat folder", "manifest", "arrays", "shards", "fashion", …
    classes: tuple[str, ...]  # NFC, sorted, the same for all splits; () when unlabelled; of pixels: by their numbers
    splits: dict[str, Split]  # among train, trainval, val, test; a source without splits has the single one "all"
    notes: tuple[str, ...]  # for people: what was skipped or looks odd
    multilabel: bool = False
    task: Literal["classify", "segment"] = "classify"  # "segment": classes are those of pixels, splits have masks
    palette: tuple[tuple[int, int, int], ...] = ()  # the colour of each class of pixels

    @property
    def is_remote(self) -> bool:
        return any(split.is_remote for split in self.splits.values())

    def with_classes(self, classes: Sequence[str]) -> tuple[Data, tuple[str, ...], tuple[str, ...]]:
        """Return the same images with labels that index a model's `classes`, matched by name, never by position.

        Return also the names that only the model has, and those that only the data have. Images of the latter become
        unlabelled (-1), or lose that label; their pixels are ignored.
        """
        exact = {name: index for index, name in enumerate(classes)}
        by_name = {nfc(name): index for name, index in exact.items()} | exact
        target = np.array([by_name.get(name, by_name.get(nfc(name), -1)) for name in self.classes], dtype=np.int64)
        splits = {}
        for split_name, split in self.splits.items():
            labels: SplitLabels
            if self.task == "segment":
                masks = None if split.masks is None else RenumberedMasks.of(split.masks, target)
                splits[split_name] = replace(split, masks=masks)
                continue
            if isinstance(split.labels, SparseLabels):
                labels = split.labels.renumber(target, len(classes))
            else:
                labels = np.append(target, -1)[split.labels]  # index -1 is the appended one
            splits[split_name] = replace(split, labels=labels)
        own = set(map(nfc, self.classes))
        missing = tuple(name for name in classes if nfc(name) not in own)
        extra = tuple(name for name, index in zip(self.classes, target, strict=True) if index < 0)
        matched = replace(self, classes=tuple(classes), splits=splits, palette=self._palette_of(target, len(classes)))
        return matched, missing, extra

    def _palette_of(self, target: NDArray[np.int64], classes: int) -> tuple[tuple[int, int, int], ...]:
        """Return the palette for other class numbers; a class that the data do not have gets a colour of its number."""
        if not self.palette:
            return ()
        colours = [*default_palette(classes)]
        for colour, number in zip(self.palette, target.tolist(), strict=True):
            if number >= 0:
                colours[number] = colour
        return tuple(colours)
