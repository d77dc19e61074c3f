"""Writing tar shards in webdataset's naming, with an index for random access (`sources/shards.py` reads it).

Under temporary names until all is written, and `index.json` last: what was interrupted is not taken for whole.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tarfile
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vitkit.atomic import locked
from vitkit.data.shrink import shrink
from vitkit.data.sources.base import Data, DataError, Picture, Split
from vitkit.data.sources.files import EXTENSIONS, extension
from vitkit.data.sources.shards import INDEX, PLACES, UNFINISHED, VERSION
from vitkit.progress import Progress, no_progress
from vitkit.text import few

STRETCH = 256  # pictures that are made smaller ahead of the writing

_PARTIAL = ".partial"
_BEGINNINGS = {
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
    """Every picture byte for byte as it was found (pixels as .npy), in shards of about `megabytes` each; with `side`,
    those whose shorter side is longer are made smaller, `workers` at a time. How many were."""
    target = Path(folder)
    ours = _make_room(target)
    try:
        places: dict[str, NDArray[Any]] = {}
        splits: dict[str, Any] = {}
        smaller = 0
        for name, split in data.splits.items():
            writer = _Writer(target, name, megabytes * 1_000_000)
            smaller += _write_split(data, name, writer, side, workers, progress)
            places |= {f"{name}.{member}": array for member, array in writer.places(split).items()}
            splits[name] = {"count": len(split), "shards": writer.shards}
        index = {
            "version": VERSION,
            "source": data.name,
            "kind": data.kind,
            "classes": list(data.classes),
            "multilabel": data.multilabel,
            "splits": splits,
            **({"side": side} if smaller else {}),
        }
        with (target / (PLACES + _PARTIAL)).open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **places)
        (target / UNFINISHED).write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        shards = [shard["name"] for found in splits.values() for shard in found["shards"]]
        for finished in (*shards, PLACES, INDEX):
            os.replace(target / (finished + _PARTIAL), target / finished)
    except BaseException as error:  # Ctrl-C too
        _clear(target)
        if isinstance(error, OSError):
            raise DataError(f"{target} cannot be written to: {error.strerror or error}.") from error
        raise
    finally:
        ours.close()
    return smaller


def _write_split(data: Data, name: str, writer: _Writer, side: int | None, workers: int, progress: Progress) -> int:
    """How many of its pictures were made smaller."""
    split, smaller = data.splits[name], 0
    indices: Iterable[int] = range(len(split))
    indices = progress(indices, len(split), f"writing {name}")
    try:
        with contextlib.closing(_in_order(split, side, workers)) as pictures:
            for index, (picture, changed) in zip(indices, pictures, strict=True):
                # what was made smaller may be in another format than its name says
                writer.add(index, "" if changed else split.keys[index], picture, _label(data, split, index))
                smaller += changed
    finally:
        writer.close()
    return smaller


def _in_order(split: Split, side: int | None, workers: int) -> Generator[tuple[Picture, bool], None, None]:
    """The pictures, and whether each was made smaller."""
    if side is None:
        yield from ((split.read(index), False) for index in range(len(split)))
        return

    def one(index: int) -> tuple[Picture, bool]:
        picture = split.read(index)
        small = shrink(picture, side)
        return small, small is not picture

    with ThreadPoolExecutor(workers) as pool:  # decoding and resizing leave Python's lock
        for first in range(0, len(split), STRETCH):
            yield from pool.map(one, range(first, min(first + STRETCH, len(split))))


def _make_room(target: Path) -> IO[str]:
    """An empty folder, or one that an earlier writing left unfinished; nothing else is overwritten. What is given back
    keeps other processes out until it is closed."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        if (target / UNFINISHED).exists() or not any(target.iterdir()):
            ours = (target / UNFINISHED).open("a")
            if not locked(ours):
                ours.close()
                raise DataError(f"{target} is being written by another process.", try_="another folder, or wait for it")
            _clear(target, UNFINISHED)
            if not (found := [entry.name for entry in target.iterdir() if entry.name != UNFINISHED]):
                return ours
            ours.close()
        else:
            found = [entry.name for entry in target.iterdir()]
    except OSError as error:
        raise DataError(f"{target} cannot be written to: {error.strerror}.") from error
    raise DataError(f"{target} is not empty.", found=few(sorted(found)), try_="another folder, or empty this one")


def _clear(target: Path, but: str = "") -> None:
    for path in list(target.iterdir()):
        if path.name != but and (
            path.name.endswith(_PARTIAL) or re.fullmatch(r"[a-z]+-\d{6}\.tar|index\.npz", path.name)
        ):
            path.unlink()


def _label(data: Data, split: Split, index: int) -> tuple[str, bytes] | None:
    """webdataset's cls holds a class's number, json anything; the names are in the index."""
    if data.multilabel:
        names = [data.classes[place] for place in np.flatnonzero(split.labels[index])]
        return ".json", json.dumps({"labels": names}, ensure_ascii=False).encode()
    label = int(split.labels[index])
    return (".cls", str(label).encode()) if label >= 0 else None


class _Writer:
    """One split: shard after shard, remembering where each picture went."""

    def __init__(self, folder: Path, split: str, limit: int) -> None:
        self.folder, self.split, self.limit = folder, split, limit
        self.shards: list[dict[str, Any]] = []
        self.rows: list[tuple[int, int, int, bool]] = []  # shard, offset, size, pixels
        self.tar: tarfile.TarFile | None = None

    def add(self, index: int, key: str, picture: Picture, label: tuple[str, bytes] | None) -> None:
        content, ending = _encoded(key, picture)
        if self.tar is not None and self.tar.offset + len(content) > self.limit:
            self.close()
        if self.tar is None:
            self.shards.append({"name": f"{self.split}-{len(self.shards):06d}.tar"})
            # USTAR: one block before each member, readable by everything
            self.tar = tarfile.open(self._partial(), "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        start = self._member(self.tar, f"{index:09d}{ending}", content)
        self.rows.append((len(self.shards) - 1, start, len(content), not isinstance(picture, bytes)))
        if label is not None:
            self._member(self.tar, f"{index:09d}{label[0]}", label[1])

    def close(self) -> None:
        if self.tar is not None:
            self.tar.close()
            self.shards[-1]["bytes"] = self._partial().stat().st_size
            self.tar = None

    def places(self, split: Split) -> dict[str, NDArray[Any]]:
        shard, offset, size, pixels = (
            (np.array(column) for column in zip(*self.rows, strict=True))
            if self.rows
            else (np.zeros(0, dtype) for dtype in (np.int64, np.int64, np.int64, bool))
        )
        keys = [key.encode("utf-8", "surrogatepass") for key in split.keys]
        return {
            "shard": shard,
            "offset": offset,
            "size": size,
            "pixels": pixels,
            "labels": split.labels,
            "key_text": np.frombuffer(b"".join(keys), np.uint8),
            "key_stops": np.cumsum([len(key) for key in keys], dtype=np.int64),
        }

    def _partial(self) -> Path:
        return self.folder / (self.shards[-1]["name"] + _PARTIAL)

    @staticmethod
    def _member(tar: tarfile.TarFile, name: str, content: bytes) -> int:
        """Where its bytes begin."""
        entry = tarfile.TarInfo(name)  # no time and no owner: the same data gives the same file
        entry.size = len(content)
        start = tar.offset + tarfile.BLOCKSIZE
        tar.addfile(entry, io.BytesIO(content))
        return start


def _encoded(key: str, picture: Picture) -> tuple[bytes, str]:
    if isinstance(picture, bytes):
        by_content = next((ending for start, ending in _BEGINNINGS.items() if picture.startswith(start)), ".img")
        return picture, extension(key) if extension(key) in EXTENSIONS else by_content
    buffer = io.BytesIO()
    np.save(buffer, picture, allow_pickle=False)
    return buffer.getvalue(), ".npy"
