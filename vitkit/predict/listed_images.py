"""Lists of images that workers of other machines read piece by piece: no process has to hold all the names.

The names are stored in the output folder, in blocks; images in shards have an index already, and need no list.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vitkit.data.sources.dataset import DataError, PackedStrings, Split
from vitkit.data.sources.image_files import FileImages
from vitkit.data.sources.image_paths import STANDARD_INPUT, index_folder, iterate_image_names, open_images
from vitkit.output_folder import open_output_folder
from vitkit.predict.journal import Trait
from vitkit.predict.part_folder import IMAGES
from vitkit.predict.resumable_file import images_trait
from vitkit.storage.urls import join, normalised, refuse_credentials
from vitkit.stored_json import parse_json

BLOCK = 16_384  # names


class ListedImages(Protocol):
    """The images of a job, which can be sent to a worker; it opens those that it needs."""

    def __len__(self) -> int: ...
    def split(self, images: range) -> Split: ...


@dataclass(frozen=True)
class StoredNames:
    """The names of files, in blocks in an output folder."""

    folder: str
    key: str  # of the list: an older one may be there too
    images: int
    root: str  # the working directory that relative names start from

    def __len__(self) -> int:
        return self.images

    def split(self, images: range) -> Split:
        folder, names = open_output_folder(self.folder), list[str]()
        for block in range(images.start // BLOCK, -(-images.stop // BLOCK)):
            name = self.block(block)
            stored: list[str] = parse_json(folder.read(name), list[str], f"{folder.where}/{name}", error=DataError)
            first = block * BLOCK
            names += stored[max(images.start - first, 0) : images.stop - first]
        packed = PackedStrings(names)
        return Split(packed, np.full(len(packed), -1), FileImages(self.root, packed), np.arange(len(packed)))

    def block(self, number: int) -> str:
        return f"names-{self.key}-{number:06d}.json"

    def delete(self) -> None:
        folder = open_output_folder(self.folder)
        for name in folder.names(f"names-{self.key}-"):
            folder.delete(name)


@dataclass(frozen=True)
class IndexedImages:
    """The images of shards, which every worker can open."""

    path: str
    images: int

    def __len__(self) -> int:
        return self.images

    def split(self, images: range) -> Split:
        return _open_shards(self.path).select(np.arange(images.start, images.stop))


@functools.lru_cache(1)
def _open_shards(path: str) -> Split:
    return open_images([path])


class NameSpool:
    """The names of the images, one after the other, kept in a temporary file on this machine's disk."""

    def __init__(self, sources: Sequence[str]):
        self.file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self.count = 0

        def written() -> Iterator[str]:
            for name in _names(sources):
                refuse_credentials("IMAGES", name, kept_in="the list of images that the workers read")
                self.file.write(json.dumps(name) + "\n")
                self.count += 1
                yield name

        self.trait: Trait = images_trait(written())

    def store(self, folder_name: str) -> StoredNames:
        """Write the blocks that the output folder does not have yet."""
        folder_name = join(folder_name, IMAGES)
        folder = open_output_folder(folder_name)
        stored = StoredNames(folder_name, str(self.trait.value)[:8], self.count, os.getcwd())
        there = set(folder.names("names-"))
        self.file.seek(0)
        for number, block in enumerate(self._blocks()):
            if (name := stored.block(number)) not in there:
                folder.write(name, json.dumps(block).encode())
        return stored

    def _blocks(self) -> Iterator[list[str]]:
        block: list[str] = []
        for line in self.file:
            block.append(json.loads(line))
            if len(block) == BLOCK:
                yield block
                block = []
        if block:
            yield block


def shards_of(sources: Sequence[str]) -> str | None:
    """Return the folder of shards that the sources are, or None for the names of files."""
    return sources[0] if len(sources) == 1 and index_folder(sources[0]) is not None else None


def _names(sources: Sequence[str]) -> Iterator[str]:
    """Yield the names of the images; a list on standard input is read line by line."""
    if tuple(sources) != (STANDARD_INPUT,):
        yield from iterate_image_names(sources)
        return
    empty = True
    for line in sys.stdin.buffer:
        if name := line.rstrip(b"\r\n"):
            empty = False
            yield normalised(os.fsdecode(name))
    if empty:
        raise DataError("standard input names no images.", try_="one path per line")
