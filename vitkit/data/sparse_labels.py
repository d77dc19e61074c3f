"""Multi-label labels in compressed sparse rows: the class numbers of all images in one array, and where each begins.

A dense table of 3 million images and 18,000 classes has 54 GB of booleans; five labels each take 84 MB here. Dense rows
are made for one batch at a time.

Shapes: n images, K classes, m labels of all images together, B images of a batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLOCK = 1 << 16  # images at a time, where a step needs more memory than its result
DENSE_BLOCK = 1 << 24  # cells of a dense block, which is made for a moment

Ints = NDArray[np.int64]


class SparseLabels:
    """The labels of n images among K classes; each image has any number of them, in ascending order, each once."""

    def __init__(self, offsets: NDArray[Any], numbers: NDArray[Any], classes: int) -> None:
        """Keep the arrays: the labels of image i are numbers[offsets[i] : offsets[i + 1]].

        A ValueError says what is wrong with arrays that came from a file.
        """
        self.offsets = np.asarray(offsets, dtype=np.int64)  # (n + 1,)
        self.numbers = np.asarray(numbers, dtype=np.int32)  # (m,)
        self.classes = classes
        if self.offsets.ndim != 1 or self.numbers.ndim != 1 or not len(self.offsets):
            raise ValueError("offsets and class numbers of labels have to be lists")
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.numbers) or (np.diff(self.offsets) < 0).any():
            raise ValueError("offsets of labels outside the list of class numbers")
        if len(self.numbers) and not 0 <= self.numbers.min() <= self.numbers.max() < classes:
            raise ValueError("labels outside the list of classes")
        ascending = np.append(self.numbers[1:] > self.numbers[:-1], True)
        ascending[self.offsets[1:][self.offsets[1:] > 0] - 1] = True  # from one image to the next they may fall
        if not ascending.all():
            self._sort_rows()

    @classmethod
    def from_rows(cls, rows: Iterable[Iterable[int]], classes: int) -> SparseLabels:
        """Read the class numbers of one image after another."""
        collected = LabelRows()
        for row in rows:
            collected.add(row)
        return collected.build(classes)

    @classmethod
    def from_dense(cls, table: ArrayLike) -> SparseLabels:
        """Read a table (n, K) in which every value but 0 is a label; it may be memory-mapped."""
        table = table if isinstance(table, np.ndarray) else np.asarray(table)
        rows = max(DENSE_BLOCK // max(table.shape[1], 1), 1)
        return cls.from_blocks((table[first : first + rows] for first in range(0, len(table), rows)), table.shape[1])

    @classmethod
    def from_blocks(cls, blocks: Iterable[NDArray[Any]], classes: int) -> SparseLabels:
        """Read a dense table (n, K) that comes in blocks of its rows."""
        lengths, numbers = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)]
        for block in blocks:
            present = np.asarray(block) != 0
            lengths.append(present.sum(axis=1, dtype=np.int64))
            numbers.append(np.nonzero(present)[1].astype(np.int32))
        return cls(np.cumsum(np.concatenate(lengths)), np.concatenate(numbers), classes)

    @classmethod
    def from_indices(cls, labels: ArrayLike, classes: int) -> SparseLabels:
        """Read one class number for each image (n,), -1 where it has none."""
        indices = np.asarray(labels)
        return cls(np.cumsum(np.append(0, indices >= 0)), indices[indices >= 0], classes)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.classes

    @property
    def nbytes(self) -> int:
        return self.offsets.nbytes + self.numbers.nbytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SparseLabels)
            and self.shape == other.shape
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.numbers, other.numbers)
        )

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> NDArray[np.int32]: ...
    @overload
    def __getitem__(self, index: NDArray[Any] | slice) -> SparseLabels: ...
    def __getitem__(self, index: int | np.integer[Any] | NDArray[Any] | slice) -> NDArray[np.int32] | SparseLabels:
        """Return the class numbers of one image; or the labels of images by their indices, a mask or a slice."""
        if isinstance(index, int | np.integer):
            row = range(len(self))[int(index)]
            return self.numbers[self.offsets[row] : self.offsets[row + 1]]
        chosen = self._indices(index)
        lengths = self.offsets[chosen + 1] - self.offsets[chosen]
        offsets = np.append(0, np.cumsum(lengths))
        numbers = np.empty(offsets[-1], np.int32)
        for first in range(0, len(chosen), BLOCK):  # positions are 64 bits wide: not those of all labels at once
            block = slice(first, first + BLOCK)
            start, stop = offsets[first], offsets[min(first + BLOCK, len(chosen))]
            shifts = np.repeat(self.offsets[chosen[block]] - offsets[:-1][block], lengths[block])
            numbers[start:stop] = self.numbers[shifts + np.arange(start, stop)]
        return self._unchecked(offsets, numbers, self.classes)

    def counts(self) -> Ints:
        """Count the images of each class: (K,)."""
        return np.bincount(self.numbers, minlength=self.classes).astype(np.int64)

    def has_any(self) -> NDArray[np.bool_]:
        """Return (n,) whether each image has a label at all."""
        return np.diff(self.offsets) > 0

    def dense(self, indices: ArrayLike | None = None) -> NDArray[np.bool_]:
        """Return the rows of a batch as a table (B, K); by default those of all images, which have to be few."""
        chosen = self if indices is None else self[np.asarray(indices)]
        table = np.zeros(chosen.shape, dtype=bool)
        table[chosen.rows(), chosen.numbers] = True
        return table

    def dense_blocks(self, images: int | None = None) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
        """Yield the table in blocks of rows that are small whatever the number of classes."""
        images = images or max(DENSE_BLOCK // max(self.classes, 1), 1)
        for first in range(0, len(self), images):
            block = slice(first, min(first + images, len(self)))
            yield block, self[block].dense()

    def rows(self) -> Ints:
        """Return (m,) the image of each label."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def by_class(self) -> SparseLabels:
        """Return the transposed table: row k holds the images of class k, in ascending order."""
        order = np.argsort(self.numbers, kind="stable")
        return self._unchecked(
            np.append(0, np.cumsum(self.counts())), self.rows()[order].astype(np.int32), max(len(self), 1)
        )

    def images_of(self, number: int) -> Ints:
        """Return the images of one class in ascending order; `by_class` is faster for many classes."""
        return np.searchsorted(self.offsets, np.flatnonzero(self.numbers == number), side="right") - 1

    def rarest(self) -> Ints:
        """Return (n,) the label of each image that the fewest images have, the first of several, -1 without any."""
        counts, labelled, chosen = self.counts(), self.has_any(), np.full(len(self), -1, np.int64)
        for first in range(0, len(self), BLOCK):
            start, stop = self.offsets[first], self.offsets[min(first + BLOCK, len(self))]
            numbers = self.numbers[start:stop].astype(np.int64)
            images = first + np.flatnonzero(labelled[first : first + BLOCK])
            if len(images):
                by_rarity = counts[numbers] * self.classes + numbers
                chosen[images] = np.minimum.reduceat(by_rarity, self.offsets[images] - start) % self.classes
        return chosen

    def differ(self, one: ArrayLike, other: ArrayLike) -> NDArray[np.bool_]:
        """Return whether the labels of each pair of images differ."""
        first, second = self[np.asarray(one)], self[np.asarray(other)]
        result = np.diff(first.offsets) != np.diff(second.offsets)
        same_length = np.flatnonzero(~result)
        first, second = first[same_length], second[same_length]
        unequal = first.rows()[first.numbers != second.numbers]
        result[same_length[unequal]] = True
        return result

    def renumber(self, target: NDArray[Any], classes: int) -> SparseLabels:
        """Return the labels with class k as target[k] among other classes; -1 removes it, and equal ones are joined."""
        numbers = np.asarray(target, dtype=np.int32)[self.numbers] if len(self.numbers) else self.numbers
        kept = numbers >= 0
        if not kept.all():
            removed = np.append(0, np.cumsum(~kept))[self.offsets]
            return SparseLabels(self.offsets - removed, numbers[kept], classes)
        return SparseLabels(self.offsets, numbers, classes)

    @classmethod
    def _unchecked(cls, offsets: Ints, numbers: NDArray[np.int32], classes: int) -> SparseLabels:
        """Return labels of arrays that are known to be right: a batch is not checked again and again."""
        labels = cls.__new__(cls)
        labels.offsets, labels.numbers, labels.classes = offsets, numbers, classes
        return labels

    def _indices(self, index: NDArray[Any] | slice) -> Ints:
        if isinstance(index, slice):
            return np.arange(*index.indices(len(self)))
        if index.dtype == bool:
            return np.flatnonzero(index)
        chosen = index.astype(np.int64)
        return np.where(chosen < 0, chosen + len(self), chosen)  # as numpy counts from the end

    def _sort_rows(self) -> None:
        """Sort the labels of each image and remove those that it has twice."""
        numbers, lengths = [np.zeros(0, np.int32)], [np.zeros(1, np.int64)]
        for first in range(0, len(self), BLOCK):
            stops = self.offsets[first : first + BLOCK + 1]
            rows = np.repeat(np.arange(len(stops) - 1), np.diff(stops))
            cells = np.unique(rows * self.classes + self.numbers[stops[0] : stops[-1]])
            numbers.append((cells % self.classes).astype(np.int32))
            lengths.append(np.bincount(cells // self.classes, minlength=len(stops) - 1))
        self.numbers = np.concatenate(numbers)
        self.offsets = np.cumsum(np.concatenate(lengths))


class LabelRows:
    """Class numbers that are collected image by image, in a few bytes each."""

    def __init__(self) -> None:
        self.numbers, self.stops = array("i"), array("q", [0])

    def add(self, numbers: Iterable[int]) -> None:
        """Add the next image."""
        self.numbers.extend(numbers)
        self.stops.append(len(self.numbers))

    def build(self, classes: int) -> SparseLabels:
        return SparseLabels(np.array(self.stops), np.array(self.numbers, dtype=np.int32), classes)


ClassIndices = NDArray[np.int64]  # (n,), -1 where unlabelled
SplitLabels = ClassIndices | SparseLabels
