"""Images as numpy arrays in a .npz file: images and labels, or a pair of them per split.

Shapes: N images, H height, W width, C channels, K classes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.bounded_read import TooLarge, check_npz
from vitkit.data.mapped_npz import map_npz
from vitkit.data.sources.class_labels import NamedLabels, RawSplit, build_data
from vitkit.data.sources.dataset import Data, DataError, PackedStrings
from vitkit.data.sources.splits import ALL, canonical_split, check_split_spellings
from vitkit.data.sparse_labels import DENSE_BLOCK, SparseLabels
from vitkit.regular_file import open_regular
from vitkit.text import few

IMAGES = ("images", "x", "data")
LABELS = ("labels", "y", "targets")
CLASSES = ("classes", "class_names", "label_names")


class ArrayImages:
    """One array of the file, memory-mapped where it is not compressed, otherwise loaded once per process."""

    def __init__(self, file: str, member: str) -> None:
        self.file, self.member = file, member
        self.array: NDArray[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "array": None}  # another process opens the file itself

    def open(self) -> NDArray[Any]:
        if self.array is None:
            [self.array] = map_npz(self.file, [self.member]).values()
        return self.array

    def read(self, row: int) -> NDArray[Any]:
        image = np.array(self.open()[row])
        return image[..., None] if image.ndim == 2 else image  # (H, W, C)


def open_arrays(name: str, file: Path) -> Data:
    path = str(file.absolute())
    try:
        with open_regular(path) as file_object, np.load(file_object, allow_pickle=False) as archive:
            members = list(archive.files)
            pairs = _pairs(name, members)
            class_names = next((member for member in members if member.lower() in CLASSES), None)
            check_npz(path, filter(None, [class_names, *(member for pair in pairs.values() for member in pair)]))
            names = archive[class_names] if class_names else None
        # tables of 0 and 1 can be larger than the memory, and are mapped from the file where they are not compressed
        labels = {split: map_npz(path, [second])[second] if second else None for split, (_, second) in pairs.items()}
        images = {split: ArrayImages(path, first) for split, (first, _) in pairs.items()}
        shapes = {split: _check_images(name, pairs[split][0], store.open()) for split, store in images.items()}
    except DataError:
        raise
    except TooLarge as error:
        raise DataError(f"{name}: {error}.", try_="np.savez, uncompressed, if these are images") from error
    except Exception as error:  # damaged bytes raise errors of zlib, struct, numpy or the tokeniser
        raise DataError(
            f"{name} is not a npz file of plain arrays: {error}",
            try_="copy or save it again; pickled objects are never loaded",
        ) from error
    for split, array in labels.items():
        if array is not None and (array.ndim == 0 or len(array) != shapes[split]):
            raise DataError(
                f"{name}: {pairs[split][0]} has {shapes[split]:,} images, but {pairs[split][1]} "
                f"has the shape {array.shape}."
            )
    named, notes = _named_labels(name, labels, _class_names(name, names))
    splits = {
        split: RawSplit(
            PackedStrings(f"{pairs[split][0]}[{row}]" for row in range(count)),
            images[split],
            named.get(split, [None] * count),
        )
        for split, count in shapes.items()
    }
    return build_data(name, "arrays", splits, notes=notes)


def _pairs(name: str, members: Sequence[str]) -> dict[str, tuple[str, str | None]]:
    """Return split → (images, labels): x_train and y_train, train_images and train_labels, or images and labels."""
    images: dict[str, str] = {}
    labels: dict[str, str] = {}
    spelled: set[str] = set()
    for member in members:
        word, written = _word_and_split(member)
        split = canonical_split(written) if written else ALL
        if split and word in IMAGES + LABELS:
            table = images if word in IMAGES else labels
            if split in table and written in ("", *spelled):
                raise DataError(f"{name}: {table[split]} and {member} could both be the {word} of {split}.")
            table[split] = member
            spelled.add(written)
    spelled.discard("")
    check_split_spellings(name, spelled)
    if spelled and ALL in images:
        raise DataError(f"{name} has both {images[ALL]} and splits: {few(members, 8)}.")
    if not images:
        raise DataError(
            f"{name} has no usable images.",
            expected="images and labels (x and y, data and targets), or x_train, y_train, x_test, …",
            found=few(list(members), 8) or "an empty file",
        )
    return {split: (member, labels.get(split)) for split, member in images.items()}


def _word_and_split(member: str) -> tuple[str, str]:
    """Split x_train → x, train; train_images → images, train; labels → labels and no split."""
    before, _, after = member.lower().partition("_")
    if canonical_split(after):
        return before, after
    return (after, before) if canonical_split(before) else (member.lower(), "")


def _check_images(name: str, member: str, images: NDArray[Any]) -> int:
    """Check that the array is (N, H, W) or (N, H, W, C) of uint8, uint16 or floats, and return N."""

    def wrong(problem: str, hint: str) -> DataError:
        return DataError(f"{name}: {member} {problem}.", found=f"{images.dtype} {images.shape}", try_=hint)

    if images.ndim not in (3, 4) or 0 in images.shape[1:]:
        raise wrong("is not an array of images", "shape (images, height, width) or (images, height, width, channels)")
    if images.ndim == 4 and images.shape[1] in (1, 3, 4) and images.shape[3] > 4:
        raise wrong("has its channels before height and width", f"{member}.transpose(0, 2, 3, 1)")
    if images.dtype not in (np.uint8, np.uint16) and images.dtype.kind != "f":
        raise wrong("has a dtype of unknown value range", f'{member}.astype("uint8")')
    return len(images)


def _class_names(name: str, names: NDArray[Any] | None) -> list[str] | None:
    if names is None:
        return None
    if names.ndim != 1 or names.dtype.kind not in "UT" or len(set(names.tolist())) < len(names):
        raise DataError(
            f"{name}: the class names are not a list of distinct strings.", found=f"{names.dtype} {names.shape}"
        )
    return [str(word) for word in names]


def _named_labels(
    name: str, labels: dict[str, NDArray[Any] | None], names: list[str] | None
) -> tuple[dict[str, list[str | None] | NamedLabels], list[str]]:
    """Turn class numbers into class names; without names, the numbers are the names."""
    known = {
        split: array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array  # (N, 1), as MedMNIST has it
        for split, array in labels.items()
        if array is not None
    }
    if any(array.ndim == 2 for array in known.values()):
        tables = _tables(name, known)
        if not all((np.diff(table.offsets) == 1).all() for table in tables.values()):
            if len(known) < len(labels):
                raise DataError(f"{name}: labels (N, K) are missing for {few(sorted(labels.keys() - known.keys()))}.")
            width = next(iter(tables.values())).classes
            class_names = list(_names_by_number(name, range(width), names).values())
            return {split: NamedLabels(class_names, table) for split, table in tables.items()}, []
        known = {split: table.numbers for split, table in tables.items()}
        notes = ["labels are one-hot: read as one class each"]
    else:
        notes = []
    single: dict[str, list[str | None] | NamedLabels] = {}
    for split, array in known.items():
        if array.dtype.kind in "UT" and array.ndim == 1:
            single[split] = [str(word) or None for word in array.tolist()]
            continue
        if array.ndim > 1 or array.dtype.kind not in "biuf" or not np.equal(np.mod(array, 1), 0).all():
            raise DataError(f"{name}: labels have to be integers or strings.", found=f"{array.dtype} {array.shape}")
        by_number = _names_by_number(name, [int(label) for label in np.unique(array) if label != -1], names)
        single[split] = [None if label < 0 else by_number[label] for label in array.astype(np.int64).tolist()]
    return single, notes


def _tables(name: str, known: dict[str, NDArray[Any]]) -> dict[str, SparseLabels]:
    """Read tables (N, K) of 0 and 1, a block of rows at a time."""
    wrong = DataError(f"{name}: labels (N, K) have to be 0 or 1 with the same K in every split.")
    if len({array.shape[1:] for array in known.values()}) > 1 or any(array.ndim != 2 for array in known.values()):
        raise wrong

    def blocks(table: NDArray[Any]) -> Iterator[NDArray[Any]]:
        rows = max(DENSE_BLOCK // max(table.shape[1], 1), 1)
        for first in range(0, len(table), rows):
            block = np.asarray(table[first : first + rows])
            if not np.isin(block, (0, 1)).all():
                raise wrong
            yield block

    return {split: SparseLabels.from_blocks(blocks(table), table.shape[1]) for split, table in known.items()}


def _names_by_number(name: str, used: Sequence[int], names: list[str] | None) -> dict[int, str]:
    if used and (used[0] < 0 or (names is not None and used[-1] >= len(names))):
        raise DataError(
            f"{name}: labels from {used[0]} to {used[-1]}"
            + (f", but {len(names)} class names." if names is not None else "."),
            expected="0, 1, 2, …; -1 where unlabelled",
        )
    return {label: names[label] if names is not None else str(label) for label in used}
