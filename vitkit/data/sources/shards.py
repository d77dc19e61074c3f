"""Tar shards with an index: any image is one seek away. `vitkit/data/shard_writer.py` writes them.

index.json lists the version, the classes, and per split the shards with their sizes; index.npz has the offset of each
image. Both are written last, so shards with an index are complete. Version 2 is for multi-label data alone: it has the
class numbers of each image, where version 1 had a dense table. The arrays are memory-mapped (`vitkit.data.mapped_npz`),
so an index of 100 million images is opened in seconds, and its pages are shared by all processes of a machine; those of
earlier versions are compressed, and are read into memory.
"""

import os
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from vitkit.data.bounded_read import check_image_bytes, check_npz, load_npy, read_npy_header
from vitkit.data.mapped_npz import map_npz
from vitkit.data.sources.class_labels import label_notes, sort_classes
from vitkit.data.sources.dataset import BLOCK, AllRows, Data, DataError, PackedStrings, Split, StoredImage, nfc
from vitkit.data.sources.image_files import absolute, sample_bytes
from vitkit.data.sources.read_ahead import ReadAhead
from vitkit.data.sources.splits import SPLITS
from vitkit.data.sparse_labels import DENSE_BLOCK, SparseLabels, SplitLabels
from vitkit.storage.remote import list_files
from vitkit.storage.repeats import most_requests
from vitkit.storage.stored_file import open_stored, stored_size, stored_version
from vitkit.storage.urls import WEB, is_url, join, redacted, scheme
from vitkit.stored_json import read_bytes, read_json
from vitkit.text import counted

VERSION, SPARSE_VERSION = 1, 2
INDEX, INDEX_ARRAYS = "index.json", "index.npz"
PARTIAL_INDEX = INDEX + ".partial"
ARRAYS = ("shard", "offset", "size", "pixels", "key_text", "key_stops")
LABELS, LABEL_OFFSETS, LABEL_NUMBERS = "labels", "label_offsets", "label_numbers"
_OPEN_FILES = 64  # per thread; far below any system's limit
_GAP = 2**16  # bytes between two images that one request reads and drops: a request costs the time of 100 KB or more
_LARGEST_REQUEST = 2**22  # bytes of a request for several images


class _Version(TypedDict):
    version: int


class _Shard(TypedDict):
    name: str
    bytes: int


class _SplitRecord(TypedDict):
    count: int
    shards: list[_Shard]


class _Index(TypedDict):
    """The content of index.json."""

    version: int
    classes: list[str]
    multilabel: bool
    splits: dict[str, _SplitRecord]
    side: NotRequired[int]


class TarImages:
    """Images at offsets in tar files. Each thread of each process has file handles of its own.

    The folder may be remote: each image is then a request for a range, or one of a few images near each other.
    """

    def __init__(
        self,
        folder: str,
        shards: Sequence[str],
        shard: NDArray[Any],
        offset: NDArray[Any],
        size: NDArray[Any],
        pixels: NDArray[Any] | None = None,
    ) -> None:
        self.folder, self.shards = absolute(folder), tuple(shards)
        self.shard, self.offset, self.size = shard, offset, size
        self.pixels = np.zeros(len(shard), dtype=bool) if pixels is None else pixels  # arrays, not encoded images
        self.versions: dict[str, tuple[object, ...]] = {}  # of remote shards
        self.local, self.lock = threading.local(), threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("local", "lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.local, self.lock = threading.local(), threading.Lock()

    def read(self, row: int) -> StoredImage:
        name, size = self.shards[self.shard[row]], int(self.size[row])
        check_image_bytes(size)
        file = self._file(name)
        file.seek(int(self.offset[row]))
        return self._image(row, file.read(size))

    def _image(self, row: int, content: bytes) -> StoredImage:
        name, size = self.shards[self.shard[row]], int(self.size[row])
        if len(content) < size:
            raise DataError(f"{name} ends before the image does: {len(content):,} of {size:,} bytes")
        return load_npy(content) if self.pixels[row] else content

    @property
    def is_remote(self) -> bool:
        return is_url(self.folder)

    def read_ahead(self, rows: NDArray[np.int64]) -> ReadAhead | None:
        if not self.is_remote or len(rows) < 2:
            return None
        unique = np.array([*dict.fromkeys(rows.tolist())], np.int64)  # in the order of their use
        position = {row: number for number, row in enumerate(unique.tolist())}
        requests = sorted(self._requests(unique), key=lambda some: min(position[row] for row in some))
        return ReadAhead(self, requests, self._read_together)

    def _requests(self, rows: NDArray[np.int64]) -> Iterator[list[int]]:
        """Yield rows that one request is for: near each other in the same shard."""
        ordered = rows[np.lexsort((self.offset[rows], self.shard[rows]))].tolist()
        some: list[int] = []
        end = 0
        for row in ordered:
            start, stop = int(self.offset[row]), int(self.offset[row]) + int(self.size[row])
            if some and (
                self.shard[row] != self.shard[some[0]]
                or start - end > _GAP
                or stop - int(self.offset[some[0]]) > _LARGEST_REQUEST
            ):
                yield some
                some = []
            some.append(row)
            end = max(end, stop) if len(some) > 1 else stop
        if some:
            yield some

    def _read_together(self, rows: Sequence[int]) -> list[StoredImage | OSError | ValueError]:
        if len(rows) == 1:
            return [self.read(rows[0])]
        start = int(self.offset[rows[0]])
        end = max(int(self.offset[row]) + int(self.size[row]) for row in rows)
        file = self._file(self.shards[self.shard[rows[0]]])
        file.seek(start)
        content = file.read(end - start)
        images: list[StoredImage | OSError | ValueError] = []
        for row in rows:
            first = int(self.offset[row]) - start
            try:
                images.append(self._image(row, content[first : first + int(self.size[row])]))
            except ValueError as error:
                images.append(error)
        return images

    def sizes(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.size[rows]

    def identity(self, row: int) -> tuple[object, ...]:
        path = join(self.folder, self.shards[self.shard[row]])
        return redacted(path), *self._shard_version(path), int(self.offset[row]), int(self.size[row])

    def _shard_version(self, path: str) -> tuple[object, ...]:
        """Return what changes when a shard does; a store is asked once for each shard."""
        if not self.is_remote:
            return stored_version(path)
        with self.lock:
            if path not in self.versions:
                self.versions[path] = stored_version(path)
            return self.versions[path]

    def sample(self, row: int) -> bytes:
        if self.is_remote:
            return repr(self.identity(row)[1:]).encode()
        return sample_bytes(self._file(self.shards[self.shard[row]]), int(self.offset[row]), int(self.size[row]))

    def _file(self, name: str) -> IO[bytes]:
        if getattr(self.local, "process", None) != os.getpid():
            self.local.process, self.local.files = os.getpid(), OrderedDict()
        files: OrderedDict[str, IO[bytes]] = self.local.files
        if name not in files:
            if len(files) >= _OPEN_FILES:
                files.popitem(last=False)[1].close()
            files[name] = open_stored(join(self.folder, name))
        files.move_to_end(name)
        return files[name]


def has_index(folder: Path) -> bool:
    """Return whether the folder has an index, or one of its two files: without it, class names would be lost."""
    index, arrays = (folder / INDEX).is_file(), (folder / INDEX_ARRAYS).is_file()
    if index and arrays:
        return True
    ours = arrays or (index and b'"multilabel"' in read_bytes(folder / INDEX, error=DataError))
    return ours and not (folder / PARTIAL_INDEX).exists() and any(folder.glob("*.tar"))


def open_shards(name: str, folder: Path, location: str = "") -> Data:
    """Open the shards of an index; they are in its folder, or in the remote folder `location`."""
    location = location or str(folder)
    try:
        version: int = read_json(folder / INDEX, _Version, error=DataError)["version"]
        if version not in (VERSION, SPARSE_VERSION):
            raise DataError(
                f"{name}: shards of version {version}; this vitkit reads versions {VERSION} and {SPARSE_VERSION}.",
                try_="a newer vitkit",
            )
        index: _Index = read_json(folder / INDEX, _Index, error=DataError)
        if unknown := sorted(index["splits"].keys() - set(SPLITS)):
            raise DataError(f"{folder / INDEX} is damaged: splits.{unknown[0]} is no split.")
        if len(set(index["classes"])) < len(index["classes"]):
            raise DataError(f"{folder / INDEX} is damaged: it names a class twice.")
        headers = check_npz(folder / INDEX_ARRAYS)
        classes, multilabel = tuple(index["classes"]), index["multilabel"]
        # of version 1, read in blocks: it may be larger than the memory
        tables = {f"{split}.{LABELS}" for split in index["splits"]} if multilabel else set[str]()
        arrays = map_npz(folder / INDEX_ARRAYS, [member for member in headers if member not in tables])
        splits = {
            split: _split(name, location, split, record, arrays, _labels(folder, split, record, arrays, index))
            for split, record in sorted(index["splits"].items(), key=lambda item: SPLITS.index(item[0]))
        }
    except DataError:
        raise
    except Exception as error:  # an edited or damaged index can fail anywhere
        raise DataError(
            f"{name}: the index of these shards is damaged: {type(error).__name__}: {error}",
            try_="write the shards again with vitkit shard",
        ) from error
    data = Data(name, "shards", classes, splits, (), multilabel)
    names = tuple(map(nfc, classes))
    if names != classes:  # written before names were normalised
        data, _, _ = data.with_classes(sort_classes(names))
    notes = list(label_notes(data.classes, data.splits))
    groups = [split.groups for split in data.splits.values() if split.groups is not None]
    if groups:
        number = len(np.unique(np.concatenate(groups)))
        notes.append(f"{counted(number, 'group')} of images, each on one side of every split")
    if "side" in index:
        notes.append(f"large images were downscaled when written: shorter sides of {index['side']} pixels")
    return replace(data, notes=tuple(notes))


def _labels(
    folder: Path, split: str, record: _SplitRecord, arrays: dict[str, NDArray[Any]], index: _Index
) -> SplitLabels:
    classes = len(index["classes"])
    if not index["multilabel"]:
        labels = arrays[f"{split}.{LABELS}"]
        if labels.ndim != 1 or not _all_within(labels, -1, classes - 1):
            raise ValueError("labels outside the list of classes")
        return labels.astype(np.int64, copy=False)
    if index["version"] == VERSION:
        return _read_table(folder / INDEX_ARRAYS, f"{split}.{LABELS}.npy", (record["count"], classes))
    return SparseLabels(arrays[f"{split}.{LABEL_OFFSETS}"], arrays[f"{split}.{LABEL_NUMBERS}"], classes)


def _read_table(file: Path, member: str, shape: tuple[int, int]) -> SparseLabels:
    """Read a dense table of booleans, as earlier versions wrote it, in blocks: it may be larger than the memory."""
    with zipfile.ZipFile(file) as archive:
        with archive.open(member) as stream:
            header = read_npy_header(stream)
        if header.shape != shape or header.dtype != np.bool_ or header.fortran:
            raise ValueError(f"labels of shape {header.shape}")
        count, classes = shape
        rows = max(DENSE_BLOCK // max(classes, 1), 1)
        with archive.open(member) as stream:
            stream.read(header.length)

            def blocks() -> Iterator[NDArray[Any]]:
                for first in range(0, count, rows):
                    number = min(rows, count - first)
                    yield np.frombuffer(stream.read(number * classes), np.bool_).reshape(number, classes)

            return SparseLabels.from_blocks(blocks(), classes)


def _split(
    name: str, folder: str, split: str, record: _SplitRecord, arrays: dict[str, NDArray[Any]], labels: SplitLabels
) -> Split:
    shards = [shard["name"] for shard in record["shards"]]
    for entry in record["shards"]:
        if Path(entry["name"]).name != entry["name"]:
            raise DataError(f"{name}: the index points outside its folder, to {entry['name']!r}.")
    sizes = _sizes(folder, shards)
    for entry in record["shards"]:
        actual = sizes[entry["name"]]
        if actual != entry["bytes"]:
            raise DataError(
                f"{name}: {entry['name']} is " + ("missing." if actual is None else "incomplete."),
                expected=f"{entry['bytes']:,} bytes",
                found="no file" if actual is None else f"{actual:,} bytes",
                try_="copy it again, or write the shards again with vitkit shard",
            )
    shard, offset, size, pixels, text, stops = (arrays[f"{split}.{member}"] for member in ARRAYS)
    count = record["count"]
    if any(len(array) != count for array in (shard, offset, size, pixels, labels, stops)):
        raise ValueError("arrays of different lengths")
    ends = np.array([entry["bytes"] for entry in record["shards"]], dtype=np.int64)
    if not (_all_within(shard, 0, len(ends) - 1) and _are_inside(offset, size, shard, ends)):
        raise ValueError("offsets outside the shards")
    groups = arrays.get(f"{split}.groups")  # only where the source of the shards had any
    if groups is not None and len(groups) != count:
        raise ValueError("arrays of different lengths")
    if count and not (stops[-1] <= len(text) and _are_ascending(stops)):
        raise ValueError("names outside their text")
    keys = PackedStrings.of_arrays(text, stops.astype(np.int64, copy=False))
    store = TarImages(folder, shards, shard, offset, size, pixels)
    return Split(keys, labels, store, AllRows(count), groups)


def _all_within(values: NDArray[Any], low: int, high: int) -> bool:
    """Return whether all values are from low to high, without arrays of the length of all."""
    blocks = (values[first : first + BLOCK] for first in range(0, len(values), BLOCK))
    return all(low <= block.min() and block.max() <= high for block in blocks)


def _are_inside(offset: NDArray[Any], size: NDArray[Any], shard: NDArray[Any], ends: NDArray[np.int64]) -> bool:
    """Return whether all images lie inside their shards."""
    for first in range(0, len(offset), BLOCK):
        block = slice(first, first + BLOCK)
        starts, sizes = offset[block].astype(np.int64), size[block].astype(np.int64)
        if starts.min() < 0 or sizes.min() < 0 or (starts > ends[shard[block]] - sizes).any():
            return False
    return True


def _are_ascending(values: NDArray[Any]) -> bool:
    """Return whether no value is negative or less than the one before it."""
    blocks = (values[max(first - 1, 0) : first + BLOCK] for first in range(0, len(values), BLOCK))
    return not len(values) or (values[0] >= 0 and all(bool((block[1:] >= block[:-1]).all()) for block in blocks))


def _sizes(folder: str, names: Sequence[str]) -> dict[str, int | None]:
    """Return the size of each shard, None for a missing one; a remote folder is listed once, where it can be."""
    if is_url(folder) and scheme(folder) not in WEB:
        found = list_files(folder)
        return {name: found.get(name) for name in names}
    with ThreadPoolExecutor(most_requests() if is_url(folder) else 1) as pool:
        return dict(zip(names, pool.map(lambda name: stored_size(join(folder, name)), names), strict=True))
