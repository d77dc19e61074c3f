"""Which images go into which tar file, before anything is written: the same for any number of processes and machines.

Every process that writes shards makes the same plan from the names and the stored sizes of the images, so that they
need not talk to each other. With `side`, sizes are known only once the images are downscaled: some of them are, and
their mean decides how many images a tar file has.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vitkit.data.downscale import downscale
from vitkit.data.partition import fingerprint
from vitkit.data.shard_tar import encoded, member_bytes
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.sparse_labels import SparseLabels

PLAN = 1  # of the rules below: shards of another version are not continued
SAMPLED = 64  # images of a split that are downscaled for their mean size
STAT_CHUNK = 4096  # images whose sizes a thread asks for


@dataclass(frozen=True)
class PlannedShard:
    """A tar file and its images, the indices `first` to `stop` of a split."""

    split: str
    number: int
    first: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number:06d}.tar"

    def __len__(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True)
class ShardPlan:
    data: Data
    shards: tuple[PlannedShard, ...]
    side: int | None

    @cached_property
    def digest(self) -> str:
        """The hash of all that the bytes of the shards depend on but the content of the images."""
        digest = hashlib.blake2b(digest_size=8)
        digest.update(json.dumps([PLAN, self.side, self.data.multilabel]).encode())
        for name, split in self.data.splits.items():
            digest.update(f"{name} {fingerprint(self.data, name)} {split.groups is None}\n".encode())
            if split.groups is not None:
                digest.update(np.ascontiguousarray(split.groups).data)
        for shard in self.shards:
            digest.update(f"{shard.name} {shard.first} {shard.stop}\n".encode())
        return digest.hexdigest()

    def of_split(self, split: str) -> list[PlannedShard]:
        return [shard for shard in self.shards if shard.split == split]


def plan_shards(data: Data, *, megabytes: float, side: int | None = None, workers: int = 4) -> ShardPlan:
    """Cut each split into tar files of about so many megabytes."""
    if data.task == "segment":
        raise DataError(f"{data.name} has masks, which shards do not hold.", try_="train on the folder itself")
    shards = []
    for name, split in data.splits.items():
        sizes = _stored_sizes(split, workers) if side is None else _mean_size(split, side, workers)
        cuts = _cuts(sizes, _label_bytes(data, split), int(megabytes * 1_000_000))
        shards += [
            PlannedShard(name, number, first, stop) for number, (first, stop) in enumerate(itertools.pairwise(cuts))
        ]
    return ShardPlan(data, tuple(shards), side)


def _cuts(sizes: NDArray[np.int64], labels: Callable[[slice], NDArray[np.int64]], limit: int) -> list[int]:
    """Return where tar files begin, and the end: an image that would pass the limit begins the next one."""
    cuts, guess = [0], 1024
    while (first := cuts[-1]) < len(sizes):
        count = min(guess, len(sizes) - first)
        block = slice(first, first + count)
        before = np.append(0, np.cumsum(member_bytes(sizes[block]) + labels(block))[:-1])
        too_many = before + sizes[block] > limit
        too_many[0] = False  # one image at least, however large
        if too_many.any():
            cuts.append(first + int(too_many.argmax()))
            guess = max(2 * (cuts[-1] - first), 16)
        elif first + count == len(sizes):
            cuts.append(len(sizes))
        else:
            guess = 4 * count
    return cuts


def _stored_sizes(split: Split, workers: int) -> NDArray[np.int64]:
    """Return the bytes of each image as it is written; a store that does not know them has its images read."""
    sizes_of = getattr(split.store, "sizes", None)
    result = np.empty(len(split), np.int64)

    def measure(indices: range) -> None:
        chosen = slice(indices.start, indices.stop)
        if sizes_of is not None:
            result[chosen] = sizes_of(split.rows[np.arange(indices.start, indices.stop)])
        else:
            result[chosen] = [len(encoded("", split.read(index))[0]) for index in indices]

    chunks = [range(first, min(first + STAT_CHUNK, len(split))) for first in range(0, len(split), STAT_CHUNK)]
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(measure, chunks))
    return result


def _mean_size(split: Split, side: int, workers: int) -> NDArray[np.int64]:
    """Return the mean size of some images when they are downscaled, for each image."""
    chosen = sorted({index * len(split) // SAMPLED for index in range(SAMPLED)}) if len(split) else []

    def measure(index: int) -> int:
        return len(encoded("", downscale(split.read(index), side))[0])

    with ThreadPoolExecutor(workers) as pool:
        sizes = list(pool.map(measure, chosen))
    mean = -(-sum(sizes) // max(len(sizes), 1))
    return np.broadcast_to(np.int64(mean), len(split))


def _label_bytes(data: Data, split: Split) -> Callable[[slice], NDArray[np.int64]]:
    """Return a function of a block of images that returns what their labels take in a tar file."""
    labels = split.labels
    if not isinstance(labels, SparseLabels):
        return lambda block: member_bytes(np.ones(1, np.int64)) * (labels[block] >= 0)  # a few digits
    # {"labels": ["a", "b"]}: as json.dumps writes names, with ", " between them
    empty = len(json.dumps({"labels": []}))
    names = np.array([len(json.dumps(name, ensure_ascii=False).encode()) for name in data.classes], np.int64)

    def sparse(block: slice) -> NDArray[np.int64]:
        offsets = labels.offsets[block.start : block.stop + 1]
        lengths = np.append(0, np.cumsum(names[labels.numbers[offsets[0] : offsets[-1]]] + 2))
        text = lengths[offsets[1:] - offsets[0]] - lengths[offsets[:-1] - offsets[0]]
        return member_bytes(empty + np.maximum(text - 2, 0))

    return sparse
