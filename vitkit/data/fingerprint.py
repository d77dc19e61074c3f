"""Fingerprints of images, by which copies are found: a hash of the content and a grey thumbnail, cached on disk.

A fingerprint depends on the image's bytes alone. JPEGs are decoded at a reduced size, in grey, so that a fingerprint
costs a fraction of what training pays for the image in every epoch. A file whose path, size and time of modification
are known is not even read again.
"""

import contextlib
import hashlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.decode import PIXEL_LIMIT, decode, decode_reduced_jpeg, only_decode_errors
from vitkit.data.decode_memory import decode_memory
from vitkit.data.high_bit_depth import read_npy, read_tiff, to_byte_scale
from vitkit.data.image_info import content_hash, default_cache_path
from vitkit.data.sources.dataset import DataError, Split, StoredImage
from vitkit.errors import DecodeError
from vitkit.progress import Progress, no_progress
from vitkit.storage.repeats import most_requests

VERSION = 2  # of the fingerprints; a new number starts a new cache
SIDE = 16  # of a thumbnail
FLAT = 8.0  # standard deviation of a thumbnail under which an image has too little texture to compare
REDUCED = 128  # pixels a side, at least, from which the thumbnail of a JPEG is computed
HASH = 16  # bytes of a content hash
CHUNK = 2_000  # images between writes to the cache
QUERY = 500  # keys in one SQL query: SQLite allows 999 in its oldest versions

Gather = Callable[[Any], list[Any]]  # the values of all ranks, in their order


@dataclass(frozen=True, eq=False)
class Fingerprints:
    # (n, 16) hashes of the bytes, or of the pixels where there is little texture; zeros where an image cannot be read
    contents: NDArray[np.uint8]
    thumbnails: NDArray[np.uint8]  # (n, 16, 16) grey levels; zeros where an image cannot be decoded

    def __len__(self) -> int:
        return len(self.contents)

    @property
    def readable(self) -> NDArray[np.bool_]:
        return np.asarray(self.contents.any(axis=1))

    @property
    def decoded(self) -> NDArray[np.bool_]:
        return np.asarray(
            self.thumbnails.any(axis=(1, 2))
        )  # an image of nothing but black has nothing to compare either

    @classmethod
    def empty(cls, count: int) -> "Fingerprints":
        return cls(np.zeros((count, HASH), np.uint8), np.zeros((count, SIDE, SIDE), np.uint8))


def thumbnail(content: StoredImage) -> NDArray[np.uint8] | None:
    """Return (16, 16) grey levels of an image, or None if it cannot be decoded."""
    try:
        with only_decode_errors():
            reduced = decode_reduced_jpeg(content, REDUCED) if isinstance(content, bytes) else None
            grey, height, width = reduced if reduced is not None else _full_size(content)
            image = Image.fromarray(grey)
            # Pillow computes in integers: the same levels on every machine
            return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(0, 0, width, height)))
    except DecodeError:
        return None


def _full_size(content: StoredImage) -> tuple[NDArray[np.uint8], float, float]:
    try:
        pixels = decode(content, channels=1)
    except DecodeError:  # maybe for its number of bands, and any number will do here
        pixels = _all_bands(content)
    grey = pixels if pixels.ndim == 2 else pixels.mean(axis=2) if pixels.shape[2] > 1 else pixels[:, :, 0]
    grey = np.ascontiguousarray(grey.round().astype(np.uint8))
    return grey, float(grey.shape[0]), float(grey.shape[1])


def _all_bands(content: StoredImage) -> NDArray[Any]:
    if not isinstance(content, bytes):
        return to_byte_scale(content)
    read = read_npy if content[:6] == b"\x93NUMPY" else read_tiff
    return to_byte_scale(read(content, 4, PIXEL_LIMIT))


def _pixel_hash(content: StoredImage) -> bytes | None:
    """Return a hash of the decoded pixels, the same for any lossless format."""
    try:
        return bytes.fromhex(content_hash(decode(content, channels=3)))
    except DecodeError:
        return None


class FingerprintCache:
    """A SQLite file: identity of a stored image → hash of its content → thumbnail. Without it, all are computed."""

    def __init__(self, path: Path | None = None):
        self.lock = threading.Lock()
        self.new_contents: dict[bytes, bytes] = {}
        self.new_thumbnails: dict[bytes, bytes] = {}
        self.table: sqlite3.Connection | None = None
        try:
            path = path or default_cache_path().with_name(f"fingerprints-{VERSION}.sqlite")
            path.parent.mkdir(parents=True, exist_ok=True)
            table = sqlite3.connect(path, timeout=10, check_same_thread=False)
            for name in ("contents", "thumbnails"):
                table.execute(f"CREATE TABLE IF NOT EXISTS {name} (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
            self.table = table
        except (OSError, sqlite3.Error):
            self.table = None

    def contents(self, identities: Sequence[bytes | None]) -> dict[bytes, bytes]:
        """Return the content hashes of those images, by identity, that are known."""
        return self._lookup("contents", {key for key in identities if key is not None})

    def thumbnails(self, contents: Sequence[bytes]) -> dict[bytes, bytes]:
        return self._lookup("thumbnails", set(contents))

    def compute(self, identity: bytes | None, content: StoredImage) -> tuple[bytes, bytes]:
        """Return the hash and the thumbnail of an image, b"" if it cannot be decoded, and remember them."""
        key = bytes.fromhex(content_hash(content))
        small = self.thumbnails([key]).get(key)  # of a file that was moved, or of a copy
        if small is None:
            levels = thumbnail(content)
            small = b"" if levels is None else levels.tobytes()
            if levels is not None and levels.std() < FLAT:  # its thumbnail says nothing: copies have the same pixels
                key = _pixel_hash(content) or key
        with self.lock:
            if identity is not None:
                self.new_contents[identity] = key
            if small:  # failures are not cached: installing a decoder may fix them
                self.new_thumbnails[key] = small
        return key, small

    def save(self) -> None:
        """Write what is new so far."""
        with self.lock:
            new = {"contents": self.new_contents, "thumbnails": self.new_thumbnails}
            self.new_contents, self.new_thumbnails = {}, {}
            if self.table is not None and any(new.values()):
                with contextlib.suppress(sqlite3.Error), self.table:
                    for name, rows in new.items():
                        self.table.executemany(f"INSERT OR REPLACE INTO {name} VALUES (?, ?)", rows.items())

    def _lookup(self, name: str, keys: set[bytes]) -> dict[bytes, bytes]:
        if self.table is None:
            return {}
        ordered = sorted(keys)
        result: dict[bytes, bytes] = {}
        try:
            with self.lock:
                for first in range(0, len(ordered), QUERY):
                    some = ordered[first : first + QUERY]
                    marks = ",".join("?" * len(some))
                    result.update(
                        self.table.execute(f"SELECT key, value FROM {name} WHERE key IN ({marks})", some).fetchall()
                    )
        except sqlite3.Error:
            return {}
        return result


def read_fingerprints(
    splits: Sequence[Split],
    *,
    workers: int = 4,
    cache: FingerprintCache | None = None,
    progress: Progress = no_progress,
    rank: int = 0,
    world_size: int = 1,
    gather: Gather = lambda value: [value],
) -> Fingerprints:
    """Return the fingerprints of all images of the splits, one split after the other, read in parallel.

    Under torchrun each rank reads its share, and `gather` gives every rank those of all.
    """
    cache = cache or FingerprintCache()
    images = sum(map(len, splits))
    own = range(rank, images, world_size)
    result = Fingerprints.empty(len(own))
    fingerprints = progress(_read_in_chunks(splits, own, workers, cache), len(own), "fingerprints")
    for row, (content, small) in enumerate(fingerprints):
        if content:
            result.contents[row] = np.frombuffer(content, np.uint8)
        if small:
            result.thumbnails[row] = np.frombuffer(small, np.uint8).reshape(SIDE, SIDE)
    if world_size == 1:
        return result
    combined = Fingerprints.empty(images)
    for other, (contents, thumbnails) in enumerate(gather((result.contents, result.thumbnails))):
        combined.contents[other::world_size], combined.thumbnails[other::world_size] = contents, thumbnails
    return combined


def _read_in_chunks(
    splits: Sequence[Split], indices: range, workers: int, cache: FingerprintCache
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the hash and thumbnail of each image, b"" where there is none; the cache is saved after each chunk.

    `indices` count the images of one split after the other.
    """
    stops = np.cumsum([len(split) for split in splits])

    def examine(ref: tuple[Split, int], identity: bytes | None) -> tuple[bytes, bytes]:
        split, index = ref
        try:
            with decode_memory.hold():
                return cache.compute(identity, split.read(index))
        except DataError:
            return b"", b""

    with ThreadPoolExecutor(read_threads(splits, workers)) as pool:  # reading and decoding release the GIL
        for first in range(0, len(indices), CHUNK):
            some = np.asarray(indices[first : first + CHUNK])
            numbers = np.searchsorted(stops, some, side="right").tolist()
            chunk = [
                (splits[number], index - int(stops[number]) + len(splits[number]))
                for number, index in zip(numbers, some.tolist(), strict=True)
            ]
            identities = list(pool.map(identity_of, *zip(*chunk, strict=True)))
            contents = cache.contents(identities)
            thumbnails = cache.thumbnails(list(contents.values()))
            futures = {}
            for row, (ref, identity) in enumerate(zip(chunk, identities, strict=True)):
                if contents.get(identity or b"") not in thumbnails:
                    futures[row] = pool.submit(examine, ref, identity)
            try:
                for row, identity in enumerate(identities):
                    if row in futures:
                        yield futures[row].result()
                    else:
                        content = contents[identity or b""]
                        yield content, thumbnails[content]
            finally:
                for future in futures.values():
                    future.cancel()
                cache.save()


def read_threads(splits: Sequence[Split], workers: int) -> int:
    """Return the number of threads that read images: as many as work on them, but a remote store is waited for."""
    return max(workers, 1, most_requests() if any(split.is_remote for split in splits) else 1)


def identity_of(split: Split, index: int) -> bytes | None:
    """Return a short key of where an image is stored, its size and time of modification; None if the store has none."""
    identify = getattr(split.store, "identity", None)
    if identify is None:
        return None
    try:
        return hashlib.blake2b(repr(identify(int(split.rows[index]))).encode(), digest_size=HASH).digest()
    except OSError:
        return None
