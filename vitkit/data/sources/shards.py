"""Tar shards with an index: any picture is one seek away. `vitkit/data/shards.py` writes them.

index.json says what there is (version, classes, and per split its shards with their sizes), index.npz where each
picture lies. Both are written last, so that what has an index is whole.
"""

from __future__ import annotations

import io
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vitkit.data.sources.assemble import in_order, oddities
from vitkit.data.sources.base import Data, DataError, Names, Picture, Split, composed
from vitkit.data.sources.splits import SPLITS

VERSION = 1
INDEX, PLACES = "index.json", "index.npz"
UNFINISHED = INDEX + ".partial"
ARRAYS = ("shard", "offset", "size", "pixels", "labels", "key_text", "key_stops")
_OPEN_FILES = 64  # per thread; far below any system's limit


class TarPictures:
    """Places in tar files. Handles are a thread's and a process's own: forked or spawned, nobody moves another's."""

    def __init__(
        self,
        folder: str,
        shards: Sequence[str],
        shard: NDArray[Any],
        offset: NDArray[Any],
        size: NDArray[Any],
        pixels: NDArray[Any] | None = None,
    ) -> None:
        self.folder, self.shards = os.path.abspath(folder), tuple(shards)
        self.shard, self.offset, self.size = shard, offset, size
        self.pixels = np.zeros(len(shard), dtype=bool) if pixels is None else pixels  # were arrays, not files
        self.mine = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "mine"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.mine = threading.local()

    def read(self, row: int) -> Picture:
        name, size = self.shards[self.shard[row]], int(self.size[row])
        file = self._file(name)
        file.seek(int(self.offset[row]))
        content = file.read(size)
        if len(content) < size:
            raise DataError(f"{name} ends before the picture does: {len(content):,} of {size:,} bytes")
        return np.load(io.BytesIO(content), allow_pickle=False) if self.pixels[row] else content

    def _file(self, name: str) -> BinaryIO:
        if getattr(self.mine, "process", None) != os.getpid():
            self.mine.process, self.mine.files = os.getpid(), OrderedDict()
        files: OrderedDict[str, BinaryIO] = self.mine.files
        if name not in files:
            if len(files) >= _OPEN_FILES:
                files.popitem(last=False)[1].close()
            files[name] = open(os.path.join(self.folder, name), "rb", buffering=0)  # noqa: SIM115
        files.move_to_end(name)
        return files[name]


def has_index(folder: Path) -> bool:
    """Half of one beside tar files counts: read as somebody else's, they would lose the names of their classes."""
    index, places = (folder / INDEX).is_file(), (folder / PLACES).is_file()
    if index and places:
        return True
    ours = places or (index and b'"multilabel"' in (folder / INDEX).read_bytes())
    return ours and not (folder / UNFINISHED).exists() and any(folder.glob("*.tar"))


def open_shards(name: str, folder: Path) -> Data:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if index["version"] != VERSION:
            raise DataError(f"{name}: shards of version {index['version']}; this vitkit reads version {VERSION}.")
        with np.load(folder / PLACES, allow_pickle=False) as archive:
            arrays = {member: archive[member] for member in archive.files}
        classes, multilabel = tuple(map(str, index["classes"])), bool(index["multilabel"])
        splits = {
            split: _split(name, folder, split, found, arrays, len(classes) if multilabel else None)
            for split, found in sorted(index["splits"].items(), key=lambda item: SPLITS.index(item[0]))
        }
        labels = [split.labels for split in splits.values()]
        if not multilabel and any(len(part) and not -1 <= part.min() <= part.max() < len(classes) for part in labels):
            raise ValueError("labels beyond the list of classes")
    except DataError:
        raise
    except Exception as error:  # an index that was edited or damaged fails wherever it is first wrong
        raise DataError(
            f"{name}: the index of these shards is damaged: {type(error).__name__}: {error}",
            try_="write the shards again with vitkit shard",
        ) from error
    data = Data(name, "shards", classes, splits, (), multilabel)
    names = tuple(map(composed, classes))
    if names != classes:  # written before names were composed
        data, _, _ = data.with_classes(in_order(names))
    notes = list(oddities(data.classes, data.splits, multilabel))
    if "side" in index:
        notes.append(f"large pictures were made smaller as they were written: shorter sides of {index['side']} pixels")
    return replace(data, notes=tuple(notes))


def _split(
    name: str, folder: Path, split: str, found: dict[str, Any], arrays: dict[str, NDArray[Any]], width: int | None
) -> Split:
    shards = [str(shard["name"]) for shard in found["shards"]]
    for shard in found["shards"]:
        if Path(shard["name"]).name != shard["name"]:
            raise DataError(f"{name}: the index points outside its folder, to {shard['name']!r}.")
        path = folder / shard["name"]
        actual = path.stat().st_size if path.is_file() else None
        if actual != shard["bytes"]:
            raise DataError(
                f"{name}: {shard['name']} is " + ("missing." if actual is None else "not whole."),
                expected=f"{shard['bytes']:,} bytes",
                found="no file" if actual is None else f"{actual:,} bytes",
                try_="copy it again, or write the shards again with vitkit shard",
            )
    shard, offset, size, pixels, labels, text, stops = (arrays[f"{split}.{member}"] for member in ARRAYS)
    count = int(found["count"])
    if any(len(array) != count for array in (shard, offset, size, pixels, labels, stops)):
        raise ValueError("arrays of different lengths")
    if labels.shape != ((count,) if width is None else (count, width)):
        raise ValueError(f"labels of shape {labels.shape}")
    ends = np.array([entry["bytes"] for entry in found["shards"]], dtype=np.int64)
    if count and not (
        shard.min() >= 0 and offset.min() >= 0 and size.min() >= 0 and (offset + size <= ends[shard]).all()
    ):
        raise ValueError("places outside the shards")
    keys = Names()
    keys.text, keys.stops = text.tobytes(), stops
    keys.starts = np.concatenate([[0], stops[:-1]]).astype(np.int64)[:count]
    return Split(keys, labels, TarPictures(str(folder), shards, shard, offset, size, pixels), np.arange(count))
