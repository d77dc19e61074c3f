"""The order of the images of an epoch: a function of the seed, the epoch and a position, for any process alone.

full       a permutation of all images, as an array: 8 bytes an image in every data worker
computed   a pseudo-random permutation, each value of which is computed when it is asked for: no memory at any size
shards     the tar files in random order, and the images of a few successive ones shuffled among themselves: at any
           time a run reads from these files alone, which suits storage that seeks slowly

Shapes: n images, B positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitkit.data.sources.dataset import BLOCK, Split
from vitkit.data.stateless_rng import generator, splitmix64
from vitkit.errors import ConfigError

Shuffle = Literal["auto", "full", "computed", "shards"]
Ints = NDArray[np.int64]
Order = Callable[[Ints], Ints]  # (B,) positions in an epoch → (B,) images
OrderOfEpoch = Callable[[int], Order]

MOST_IN_TABLE = 1_000_000  # images; of more, "auto" computes the order: 8 MB in each data worker
ROUNDS = 6  # of the Feistel network; four suffice where nobody attacks (Luby and Rackoff, 1988)
SHARDS, COMPUTED = 0x5A4D, 0xFE15  # set these draws apart from those of full orders, which have the same seed


def pick_shuffle(asked: Shuffle, images: int, *, is_new: bool) -> Shuffle:
    """Return how a run shuffles; a resumed run that recorded nothing began before there was a choice."""
    if asked != "auto":
        return asked
    return "computed" if is_new and images > MOST_IN_TABLE else "full"


def order_of(split: Split, shuffle: Shuffle, seed: int, buffer: int) -> OrderOfEpoch:
    """Return the order of each epoch over the images of a split."""
    if shuffle == "shards":
        return ShardOrder(*images_by_shard(split), seed=seed, buffer=buffer)
    return partial(computed_order if shuffle == "computed" else full_order, len(split), seed)


def full_order(images: int, seed: int, epoch: int) -> Order:
    permutation: Ints = generator(seed, epoch).permutation(images)
    return permutation.__getitem__


def computed_order(images: int, seed: int, epoch: int) -> Order:
    return Permutation(images, generator(seed, epoch, COMPUTED))


class Permutation:
    """A pseudo-random permutation of 0 … n - 1 that is computed value by value.

    A position is a pair of digits in a grid of about √n x √n; each round adds a hash of one digit to the other, which
    can be undone, so that no two positions meet (a generalised Feistel network: Black and Rogaway, 2002). The grid has
    up to 2 √n places more than n; a value among these is permuted again until it is below n.
    """

    def __init__(self, count: int, random: np.random.Generator) -> None:
        self.count = count
        self.rows = max(int(np.ceil(np.sqrt(count))), 1)
        self.columns = max(-(-count // self.rows), 1)
        self.keys = random.integers(0, 2**64, ROUNDS, np.uint64)

    def __call__(self, positions: Ints) -> Ints:
        values = self._permute(np.asarray(positions).astype(np.uint64))
        while (outside := values >= self.count).any():
            values[outside] = self._permute(values[outside])
        return values.astype(np.int64)

    def _permute(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        sides = np.uint64(self.rows), np.uint64(self.columns)
        digits = list(np.divmod(values, sides[1]))
        for number, key in enumerate(self.keys):
            changed, other = number % 2, 1 - number % 2
            digits[changed] = (digits[changed] + splitmix64(digits[other] + key) % sides[changed]) % sides[changed]
        return digits[0] * sides[1] + digits[1]


class ShardOrder:
    """Shards in random order; each buffer of successive ones holds `buffer` images or a few more, which are shuffled.

    starts   (s + 1,) where the images of each shard begin in `images`
    images   (n,) the images in the order of their shards; None where they are stored in that order
    """

    def __init__(self, starts: Ints, images: Ints | None, *, seed: int, buffer: int) -> None:
        self.starts, self.images, self.seed, self.buffer = starts, images, seed, buffer

    def __call__(self, epoch: int) -> Order:
        shards = generator(self.seed, epoch, SHARDS).permutation(len(self.starts) - 1)
        stops = np.cumsum(np.diff(self.starts)[shards])  # of each shard, in the order of this epoch
        last, full = [0], 0  # of each buffer, the shard after it
        while full < stops[-1]:
            following = int(np.searchsorted(stops, full + self.buffer)) + 1  # shards until the buffer is full
            last.append(min(following, len(stops)))
            full = stops[last[-1] - 1]
        ends = np.append(0, stops)[last]  # where buffers begin, in images
        return partial(self._images, epoch, shards, np.append(0, stops), ends)

    def _images(self, epoch: int, shards: Ints, begins: Ints, ends: Ints, positions: Ints) -> Ints:
        positions = np.asarray(positions)
        buffers = np.searchsorted(ends, positions, side="right") - 1
        shuffled = np.empty_like(positions)
        for number in np.unique(buffers).tolist():
            own = buffers == number
            count = int(ends[number + 1] - ends[number])
            order = Permutation(count, generator(self.seed, epoch, SHARDS, number + 1))
            shuffled[own] = ends[number] + order(positions[own] - ends[number])
        turn = np.searchsorted(begins, shuffled, side="right") - 1  # which of the shards, in the order of this epoch
        rows = self.starts[shards[turn]] + shuffled - begins[turn]
        return rows if self.images is None else self.images[rows]


def images_by_shard(split: Split) -> tuple[Ints, Ints | None]:
    """Return where the images of each shard begin, and the images in that order, None if they are stored in it."""
    shard: Sequence[int] | None = getattr(split.store, "shard", None)
    if shard is None:
        raise ConfigError(
            "shuffle = shards: these images are not in tar files, or in several sets of them.",
            try_="vitkit shard DATA DIR, or shuffle = auto",
        )
    table = np.asarray(shard)
    blocks = [
        table[split.rows[np.arange(first, min(first + BLOCK, len(split)))]] for first in range(0, len(split), BLOCK)
    ]
    numbers = np.concatenate(blocks)
    in_order = bool((numbers[1:] >= numbers[:-1]).all())
    images = None if in_order else np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers)
    return np.append(0, np.cumsum(counts[counts > 0])), images
