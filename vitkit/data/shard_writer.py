"""Write tar shards in webdataset's naming, with an index for random access (`sources/shards.py` reads it).

Files have temporary names until all are written, and `index.json` comes last, so interrupted shards are recognised.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tarfile
from array import array
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vitkit.atomic import lock
from vitkit.data.downscale import downscale
from vitkit.data.sources.dataset import Data, DataError, PackedStrings, Split, StoredImage
from vitkit.data.sources.image_files import EXTENSIONS, extension
from vitkit.data.sources.shards import (
    INDEX,
    INDEX_ARRAYS,
    LABEL_NUMBERS,
    LABEL_OFFSETS,
    LABELS,
    PARTIAL_INDEX,
    SPARSE_VERSION,
    VERSION,
)
from vitkit.data.sparse_labels import SparseLabels
from vitkit.progress import Progress, no_progress
from vitkit.regular_file import open_regular
from vitkit.text import few

CHUNK = 256  # images that are downscaled ahead of writing

_PARTIAL = ".partial"
_MAGIC_BYTES = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG": ".png",
    b"GIF8": ".gif",
    b"RIFF": ".webp",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
    b"\x93NUMPY": ".npy",
}


def write_shards(
    data: Data,
    folder: str | os.PathLike[str],
    *,
    megabytes: int = 256,
    side: int | None = None,
    workers: int = 4,
    progress: Progress = no_progress,
) -> int:
    """Write every image byte for byte (arrays as .npy) into shards of about `megabytes` each.

    With `side`, downscale images whose shorter side is longer, `workers` at a time, and return how many were.
    """
    target = Path(folder)
    lock_file = _lock_empty_folder(target)
    try:
        arrays: dict[str, NDArray[Any]] = {}
        splits: dict[str, Any] = {}
        downscaled = 0
        for name, split in data.splits.items():
            writer = _Writer(target, name, megabytes * 1_000_000)
            downscaled += _write_split(data, name, writer, side, workers, progress)
            arrays |= {f"{name}.{member}": array for member, array in writer.index_arrays(split).items()}
            splits[name] = {"count": len(split), "shards": writer.shards}
        index = {
            "version": SPARSE_VERSION if data.multilabel else VERSION,
            "source": data.name,
            "kind": data.kind,
            "classes": list(data.classes),
            "multilabel": data.multilabel,
            "splits": splits,
            **({"side": side} if downscaled else {}),
        }
        with (target / (INDEX_ARRAYS + _PARTIAL)).open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        (target / PARTIAL_INDEX).write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        shards = [shard["name"] for record in splits.values() for shard in record["shards"]]
        for finished in (*shards, INDEX_ARRAYS, INDEX):
            os.replace(target / (finished + _PARTIAL), target / finished)
    except BaseException as error:  # Ctrl-C too
        _remove_shards(target)
        if isinstance(error, OSError):
            raise DataError(f"{target} cannot be written to: {error.strerror or error}.") from error
        raise
    finally:
        lock_file.close()
    return downscaled


def _write_split(data: Data, name: str, writer: _Writer, side: int | None, workers: int, progress: Progress) -> int:
    """Write one split and return how many of its images were downscaled."""
    split, downscaled = data.splits[name], 0
    indices: Iterable[int] = range(len(split))
    indices = progress(indices, len(split), f"writing {name}")
    try:
        with contextlib.closing(_read_images(split, side, workers)) as images:
            for index, (image, changed) in zip(indices, images, strict=True):
                # a downscaled image may have another format than its name says
                writer.add(index, "" if changed else split.keys[index], image, _label(data, split, index))
                downscaled += changed
    finally:
        writer.close()
    return downscaled


def _read_images(split: Split, side: int | None, workers: int) -> Generator[tuple[StoredImage, bool], None, None]:
    """Yield the images in order, and whether each was downscaled."""
    if side is None:
        yield from ((split.read(index), False) for index in range(len(split)))
        return

    def one(index: int) -> tuple[StoredImage, bool]:
        image = split.read(index)
        small = downscale(image, side)
        return small, small is not image

    with ThreadPoolExecutor(workers) as pool:  # decoding and resizing release the GIL
        for first in range(0, len(split), CHUNK):
            yield from pool.map(one, range(first, min(first + CHUNK, len(split))))


def _lock_empty_folder(target: Path) -> IO[str]:
    """Lock a folder that is empty, or that an interrupted run left incomplete; nothing else is overwritten.

    The returned file keeps other processes out until it is closed.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        if (target / PARTIAL_INDEX).exists() or not any(target.iterdir()):
            lock_file = open_regular(target / PARTIAL_INDEX, "a")
            if not lock(lock_file):
                lock_file.close()
                raise DataError(f"{target} is being written by another process.", try_="another folder, or wait for it")
            _remove_shards(target, PARTIAL_INDEX)
            if not (names := [entry.name for entry in target.iterdir() if entry.name != PARTIAL_INDEX]):
                return lock_file
            lock_file.close()
        else:
            names = [entry.name for entry in target.iterdir()]
    except OSError as error:
        raise DataError(f"{target} cannot be written to: {error.strerror}.") from error
    raise DataError(f"{target} is not empty.", found=few(sorted(names)), try_="another folder, or empty this one")


def _remove_shards(target: Path, keep: str = "") -> None:
    for path in list(target.iterdir()):
        if path.name != keep and (
            path.name.endswith(_PARTIAL) or re.fullmatch(r"[a-z]+-\d{6}\.tar|index\.npz", path.name)
        ):
            path.unlink()


def _label(data: Data, split: Split, index: int) -> tuple[str, bytes] | None:
    """Return the extension and content of an image's label: .cls with the class index, or .json with class names."""
    if isinstance(split.labels, SparseLabels):
        names = [data.classes[number] for number in split.labels[index]]
        return ".json", json.dumps({"labels": names}, ensure_ascii=False).encode()
    label = int(split.labels[index])
    return (".cls", str(label).encode()) if label >= 0 else None


class _Writer:
    """The writer of one split: shard after shard, with the offset of each image."""

    def __init__(self, folder: Path, split: str, limit: int) -> None:
        self.folder, self.split, self.limit = folder, split, limit
        self.shards: list[dict[str, Any]] = []
        self.shard, self.offset, self.size, self.pixels = (array(code) for code in "qqqb")  # of each image
        self.tar: tarfile.TarFile | None = None

    def add(self, index: int, key: str, image: StoredImage, label: tuple[str, bytes] | None) -> None:
        content, ending = _encoded(key, image)
        if self.tar is not None and self.tar.offset + len(content) > self.limit:
            self.close()
        if self.tar is None:
            self.shards.append({"name": f"{self.split}-{len(self.shards):06d}.tar"})
            # USTAR: one header block per member, readable by every tar
            self.tar = tarfile.open(self._partial(), "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        start = self._member(self.tar, f"{index:09d}{ending}", content)
        self.shard.append(len(self.shards) - 1)
        self.offset.append(start)
        self.size.append(len(content))
        self.pixels.append(not isinstance(image, bytes))
        if label is not None:
            self._member(self.tar, f"{index:09d}{label[0]}", label[1])

    def close(self) -> None:
        if self.tar is not None:
            self.tar.close()
            self.shards[-1]["bytes"] = self._partial().stat().st_size
            self.tar = None

    def index_arrays(self, split: Split) -> dict[str, NDArray[Any]]:
        keys = PackedStrings(split.keys)  # those of a part of a split share the bytes of all
        labels: dict[str, NDArray[Any]] = (
            {LABEL_OFFSETS: split.labels.offsets, LABEL_NUMBERS: split.labels.numbers}
            if isinstance(split.labels, SparseLabels)
            else {LABELS: split.labels}
        )
        return {
            "shard": np.array(self.shard),
            "offset": np.array(self.offset),
            "size": np.array(self.size),
            "pixels": np.array(self.pixels, dtype=bool),
            **labels,
            "key_text": np.frombuffer(keys.text, np.uint8),
            "key_stops": keys.stops,
            **({} if split.groups is None else {"groups": split.groups}),
        }

    def _partial(self) -> Path:
        return self.folder / (self.shards[-1]["name"] + _PARTIAL)

    @staticmethod
    def _member(tar: tarfile.TarFile, name: str, content: bytes) -> int:
        """Add a member and return the offset of its content."""
        entry = tarfile.TarInfo(name)  # no time and no owner: the same data give the same file
        entry.size = len(content)
        start = tar.offset + tarfile.BLOCKSIZE
        tar.addfile(entry, io.BytesIO(content))
        return start


def _encoded(key: str, image: StoredImage) -> tuple[bytes, str]:
    if isinstance(image, bytes):
        by_content = next((ending for start, ending in _MAGIC_BYTES.items() if image.startswith(start)), ".img")
        return image, extension(key) if extension(key) in EXTENSIONS else by_content
    buffer = io.BytesIO()
    np.save(buffer, image, allow_pickle=False)
    return buffer.getvalue(), ".npy"
