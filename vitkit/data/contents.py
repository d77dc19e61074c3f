"""The contents of the images of a run, in a few bytes each: a resumed run notices images that have changed.

Where the fingerprints of images are cached, because copies were looked for, the hash of all bytes is taken from there:
only files of a new size or time of modification are read again. Otherwise a sample of each image's bytes is read; of
very many images, which would take hours, of some of them.
"""

import base64
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from vitkit.data.fingerprint import CHUNK, HASH, FingerprintCache, Gather, identity_of, read_threads
from vitkit.data.image_info import content_hash
from vitkit.data.sources.dataset import Data, DataError, Split

MOST_ROWS = 65_536  # in the record of a split; each row covers several images where there are more
MOST_SAMPLED = 2_000_000  # images of which all are sampled: 100 seconds on two cores, and longer on disks that seek
ROW = 4  # bytes of a row
UNSEEN = {
    "bytes": "all bytes of files with a new size or time are compared; a change that keeps both is not seen",
    "sample": "size, beginning, middle and end of each image are compared; other changes are not seen",
    "few": f"size, beginning, middle and end of {MOST_ROWS:,} images, evenly spread, are compared; others are not",
}

Compared = Literal["bytes", "sample", "few"]


class ContentsRecord(TypedDict):
    compared: Compared
    splits: dict[str, str]


@dataclass(frozen=True)
class Reading:
    """The threads and ranks that share the reading of images."""

    workers: int = 4
    rank: int = 0
    world_size: int = 1
    gather: Gather = lambda value: [value]


def contents_record(data: Data, splits: Sequence[str], compared: Compared, reading: Reading) -> ContentsRecord:
    """Return the contents of some splits for the record of a run."""
    rows = {name: _rows(data.splits[name], compared, reading) for name in splits}
    return {"compared": compared, "splits": {name: base64.b85encode(rows[name].tobytes()).decode() for name in splits}}


def changed_images(data: Data, record: ContentsRecord, reading: Reading) -> list[str]:
    """Return the names of images whose content is not that of the record; of a row of several images, the first."""
    changed = []
    for name, text in record["splits"].items():
        if name not in data.splits:
            continue
        split, now = data.splits[name], _rows(data.splits[name], record["compared"], reading)
        then = _decode(text, name, len(now))
        first = _first_images(len(split))
        changed += [split.keys[int(first[row])] for row in np.flatnonzero((now != then).any(axis=1))]
    return changed


def pick_compared(images: int, *, hashed: bool) -> Compared:
    """Return what a run compares of so many images; `hashed` says that the hashes of all bytes are cached."""
    if hashed:
        return "bytes"
    return "sample" if images <= MOST_SAMPLED else "few"


def _rows(split: Split, compared: Compared, reading: Reading) -> NDArray[np.uint8]:
    """Return (rows, 4) digests: of each image, or of consecutive images where there are many."""
    first = _first_images(len(split))
    images: Sequence[int] = first.tolist() if compared == "few" else range(len(split))
    digests = np.zeros((len(images), HASH), np.uint8)
    own = images[reading.rank :: reading.world_size]
    cache = FingerprintCache() if compared == "bytes" else None
    mine = np.zeros((len(own), HASH), np.uint8)
    with ThreadPoolExecutor(read_threads([split], reading.workers)) as pool:
        for start in range(0, len(own), CHUNK):
            some = own[start : start + CHUNK]
            known = _cached(split, some, cache)
            unknown = [index for index in some if index not in known]
            read = pool.map(_sample if cache is None else _hash_of_bytes, [split] * len(unknown), unknown)
            known.update(zip(unknown, read, strict=True))
            for row, index in enumerate(some, start):
                mine[row] = np.frombuffer(_with_mask(split, index, known[index]), np.uint8)
    for rank, part in enumerate(reading.gather(mine)):
        digests[rank :: reading.world_size] = part
    if len(first) == len(images):
        return digests[:, :ROW].copy()
    stops = [*first[1:].tolist(), len(split)]
    joined = [
        hashlib.blake2b(digests[start:stop].tobytes(), digest_size=ROW).digest()
        for start, stop in zip(first.tolist(), stops, strict=True)
    ]
    return np.frombuffer(b"".join(joined), np.uint8).reshape(-1, ROW)


def _cached(split: Split, indices: Sequence[int], cache: FingerprintCache | None) -> dict[int, bytes]:
    """Return the hashes of images that the cache has under their file's path, size and time of modification."""
    if cache is None:
        return {}
    identities = {index: identity_of(split, index) for index in indices}
    contents = cache.contents(list(identities.values()))
    return {index: contents[key] for index, key in identities.items() if key in contents}


def _with_mask(split: Split, index: int, digest: bytes) -> bytes:
    """Return the digest of an image and of its mask, whose few bytes are read each time; without one, the image's."""
    if split.masks is None:
        return digest
    try:
        return hashlib.blake2b(digest + split.mask_content(index), digest_size=HASH).digest()
    except (OSError, ValueError):
        return bytes(HASH)


def _hash_of_bytes(split: Split, index: int) -> bytes:
    try:
        return bytes.fromhex(content_hash(split.read(index)))
    except DataError:
        return bytes(HASH)  # as in the fingerprints: it cannot be read


def _sample(split: Split, index: int) -> bytes:
    sample = getattr(split.store, "sample", None)
    if sample is None:
        return _hash_of_bytes(split, index)
    try:
        return hashlib.blake2b(sample(int(split.rows[index])), digest_size=HASH).digest()
    except OSError:
        return bytes(HASH)


def _first_images(images: int) -> NDArray[np.int64]:
    """Return the first image of each row."""
    return (
        np.arange(images) if images <= MOST_ROWS else np.linspace(0, images, MOST_ROWS, endpoint=False, dtype=np.int64)
    )


def _decode(text: str, name: str, rows: int) -> NDArray[np.uint8]:
    try:
        content = base64.b85decode(text)
    except ValueError:
        content = b""
    if len(content) != rows * ROW:
        raise DataError(f"the record of the run is damaged: data.contents.splits.{name} is not of {rows:,} images.")
    return np.frombuffer(content, np.uint8).reshape(-1, ROW)
