"""Images as numpy arrays in a .npz file: images and labels, or a pair of them per split.

Shapes: N images, H height, W width, C channels, K classes.
"""

import re
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.bounded_read import TooLarge, check_npz, read_npy_header
from vitkit.data.sources.class_labels import RawSplit, build_data
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.splits import ALL, canonical_split, check_split_spellings
from vitkit.regular_file import open_regular
from vitkit.text import few

IMAGES = ("images", "x", "data")
LABELS = ("labels", "y", "targets")
CLASSES = ("classes", "class_names", "label_names")

Strings = Sequence[str | None] | Sequence[Sequence[str]]


class ArrayImages:
    """One array of the file, memory-mapped where it is not compressed, otherwise loaded once per process."""

    def __init__(self, file: str, member: str) -> None:
        self.file, self.member = file, member
        self.array: NDArray[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "array": None}  # another process opens the file itself

    def open(self) -> NDArray[Any]:
        if self.array is None:
            self.array = _open_member(self.file, self.member)
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
            labels = {split: archive[second] if second else None for split, (_, second) in pairs.items()}
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
    strings, multilabel, notes = _strings(name, labels, _class_names(name, names))
    splits = {
        split: RawSplit(
            [f"{pairs[split][0]}[{row}]" for row in range(count)], images[split], strings.get(split) or [None] * count
        )
        for split, count in shapes.items()
    }
    return build_data(name, "arrays", splits, notes=notes, multilabel=multilabel)


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


def _strings(
    name: str, labels: dict[str, NDArray[Any] | None], names: list[str] | None
) -> tuple[dict[str, Strings], bool, list[str]]:
    """Turn class numbers into class names; without names, the numbers are the names."""
    known = {
        split: array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array  # (N, 1), as MedMNIST has it
        for split, array in labels.items()
        if array is not None
    }
    tables = [array for array in known.values() if array.ndim == 2]
    notes, multilabel = [], False
    if tables:
        if len(tables) < len(known) or any(
            array.shape[1] != tables[0].shape[1] or not np.isin(array, (0, 1)).all() for array in tables
        ):
            raise DataError(f"{name}: labels (N, K) have to be 0 or 1 with the same K in every split.")
        if all((array.sum(axis=1) == 1).all() for array in tables):
            notes.append("labels are one-hot: read as one class each")
            known = {split: array.argmax(axis=1) for split, array in known.items()}
        else:
            multilabel = True
            if len(known) < len(labels):
                raise DataError(f"{name}: labels (N, K) are missing for {few(sorted(labels.keys() - known.keys()))}.")
            known = {split: array.astype(bool) for split, array in known.items()}
    strings: dict[str, Strings] = {}
    for split, array in known.items():
        if array.dtype.kind in "UT" and array.ndim == 1:
            strings[split] = [str(word) or None for word in array.tolist()]
            continue
        if array.ndim > 2 or array.dtype.kind not in "biuf" or not np.equal(np.mod(array, 1), 0).all():
            raise DataError(f"{name}: labels have to be integers or strings.", found=f"{array.dtype} {array.shape}")
        class_names = _names_by_number(name, array, names)
        if multilabel:
            strings[split] = [[class_names[column] for column in np.flatnonzero(row).tolist()] for row in array]
        else:
            strings[split] = [None if label < 0 else class_names[label] for label in array.astype(np.int64).tolist()]
    return strings, multilabel, notes


def _names_by_number(name: str, array: NDArray[Any], names: list[str] | None) -> Sequence[str] | dict[int, str]:
    used = [*range(array.shape[1])] if array.ndim == 2 else [int(label) for label in np.unique(array) if label != -1]
    if used and (used[0] < 0 or (names is not None and used[-1] >= len(names))):
        raise DataError(
            f"{name}: labels from {used[0]} to {used[-1]}"
            + (f", but {len(names)} class names." if names is not None else "."),
            expected="0, 1, 2, …; -1 where unlabelled",
        )
    return names if names is not None else {label: str(label) for label in used}


def _open_member(file: str, member: str) -> NDArray[Any]:
    with zipfile.ZipFile(file) as archive:
        inside = {re.sub(r"\.npy$", "", info.filename): info for info in archive.infolist()}
        info = inside[member]
        with archive.open(info) as stream:
            shape, fortran, dtype, header = read_npy_header(stream)
    if info.compress_type != zipfile.ZIP_STORED or dtype.hasobject or 0 in shape:
        with np.load(file, allow_pickle=False) as arrays:
            return arrays[member]
    with open_regular(file) as raw:  # only the member's own header tells its length
        raw.seek(info.header_offset + 26)
        lengths = struct.unpack("<HH", raw.read(4))
    start = info.header_offset + 30 + sum(lengths) + header
    return np.memmap(file, dtype, "r", start, shape, "F" if fortran else "C")
