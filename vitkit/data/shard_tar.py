"""Write one tar file of images in webdataset's naming: INDEX.jpg and, next to it, INDEX.cls or INDEX.json."""

from __future__ import annotations

import io
import json
import tarfile
from array import array
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.downscale import downscale
from vitkit.data.sources.dataset import Data, Split, StoredImage
from vitkit.data.sources.image_files import EXTENSIONS, extension
from vitkit.data.sparse_labels import SparseLabels

CHUNK = 64  # images that are read and downscaled ahead of writing

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


class TarWriter:
    """The writer of one tar file, which notes where each image is."""

    def __init__(self, path: Path) -> None:
        # USTAR: one header block per member, readable by every tar
        self.tar = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
        self.offset, self.size, self.pixels = (array(code) for code in "qqb")  # of each image
        self.downscaled = 0

    def write(self, data: Data, split: Split, images: range, side: int | None, threads: int) -> Generator[int]:
        """Write the images of a split, downscaled to `side` by so many threads, and yield the number of each chunk."""

        def read(index: int) -> tuple[StoredImage, bool]:
            image = split.read(index)
            small = image if side is None else downscale(image, side)
            return small, small is not image

        with ThreadPoolExecutor(threads) as pool:  # files are read, decoded and resized without the GIL
            for first in range(0, len(images), CHUNK):
                chunk = images[first : first + CHUNK]
                for index, (image, changed) in zip(chunk, pool.map(read, chunk), strict=True):
                    # a downscaled image may have another format than its name says
                    self._add(index, "" if changed else split.keys[index], image, label_of(data, split, index))
                    self.downscaled += changed
                yield len(chunk)

    def close(self) -> None:
        self.tar.close()

    def index_arrays(self) -> dict[str, NDArray[Any]]:
        """Return where the images are: a part of the index."""
        return {
            "offset": np.array(self.offset, np.int64),
            "size": np.array(self.size, np.int64),
            "pixels": np.array(self.pixels, np.bool_),
        }

    def _add(self, index: int, key: str, image: StoredImage, label: tuple[str, bytes] | None) -> None:
        content, ending = encoded(key, image)
        self.offset.append(self._member(f"{index:09d}{ending}", content))
        self.size.append(len(content))
        self.pixels.append(not isinstance(image, bytes))
        if label is not None:
            self._member(f"{index:09d}{label[0]}", label[1])

    def _member(self, name: str, content: bytes) -> int:
        """Add a member and return the offset of its content."""
        entry = tarfile.TarInfo(name)  # no time and no owner: the same data give the same file
        entry.size = len(content)
        start = self.tar.offset + tarfile.BLOCKSIZE
        self.tar.addfile(entry, io.BytesIO(content))
        return start


def member_bytes(size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what members of these sizes take in a tar file: a header, and whole blocks."""
    return tarfile.BLOCKSIZE * (1 + -(-size // tarfile.BLOCKSIZE))


def label_of(data: Data, split: Split, index: int) -> tuple[str, bytes] | None:
    """Return the extension and content of an image's label: .cls with the class index, or .json with class names."""
    if isinstance(split.labels, SparseLabels):
        names = [data.classes[number] for number in split.labels[index]]
        return ".json", json.dumps({"labels": names}, ensure_ascii=False).encode()
    label = int(split.labels[index])
    return (".cls", str(label).encode()) if label >= 0 else None


def encoded(key: str, image: StoredImage) -> tuple[bytes, str]:
    """Return the bytes of an image as they are written, and the extension of its member."""
    if isinstance(image, bytes):
        by_content = next((ending for start, ending in _MAGIC_BYTES.items() if image.startswith(start)), ".img")
        return image, extension(key) if extension(key) in EXTENSIONS else by_content
    buffer = io.BytesIO()
    np.save(buffer, image, allow_pickle=False)
    return buffer.getvalue(), ".npy"
