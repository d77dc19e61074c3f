"""Pictures → batches: the same ones in the same order for any number of workers, from any step on.

A picture that cannot be decoded is named, and the next whole one of the split takes its place; when too many fail, the
run stops instead of training on what is left. Each process counts what it sees: under torchrun the training loop adds
the counts up.

Shapes: B this process's share of a batch, C channels, K classes.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vitkit.data.batch import Batch as Batch
from vitkit.data.decode import decode
from vitkit.data.order import Order
from vitkit.data.readers import read
from vitkit.data.sources.base import DataError, Split
from vitkit.data.transforms import Exact, Fast
from vitkit.errors import ConfigError, DecodeError

ALWAYS_FORGIVEN = 1  # broken pictures, in sets so small that one is more than the share allowed
NEIGHBOURS = 100  # how far the order is searched for a picture in place of a broken one

log = logging.getLogger("vitkit")


class TooManyBroken(DataError):
    """Pictures that cannot be decoded, more than one is ready to do without."""

    share = 0.0  # of all, so far


def too_many_broken(failed: int, pictures: int, allowed: float, such_as: Sequence[str] = ()) -> TooManyBroken:
    error = TooManyBroken(
        f"{failed} of {pictures:,} pictures could not be decoded so far, more than {allowed:.1%}.",
        **({"such_as": such_as} if such_as else {}),
        try_="vitkit check lists all of them",
    )
    error.share = failed / pictures
    return error


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A picture of a split, decoded and transformed; picklable, so that workers can have it."""

    split: Split
    transform: Exact | Fast
    channels: int = 3
    seed: int = 0

    def __call__(self, epoch: int, index: int, draws: Sequence[float] | None = None) -> Tensor:
        """`draws` are Fast.draw's for this picture, where they are at hand already."""
        pixels = decode(self.split.read(index), channels=self.channels)
        if isinstance(self.transform, Fast):
            return self.transform(pixels, draws or Fast.draw(self.seed, epoch, [index])[0])
        return self.transform(pixels)

    def room(self, pictures: int) -> Tensor:
        """For that many of them, unwritten."""
        dtype = torch.uint8 if isinstance(self.transform, Fast) else torch.float32
        return torch.empty(pictures, self.channels, *self.transform.image, dtype=dtype)


@dataclass
class Loader:
    """Training batches without end, from `start` on; iterate, or ask for one step with `at`."""

    reader: Reader
    batch: int  # over all processes
    start: int = 0
    workers: int = 0
    rank: int = 0
    ranks: int = 1
    shuffle: bool = True
    pin: bool = False
    max_failed: float = 0.01  # share of the pictures that may be broken
    failures: dict[int, str] = field(default_factory=dict)
    waited: float = 0.0  # seconds in which the consumer waited for data

    def __post_init__(self) -> None:
        if len(self.reader.split) == 0:
            raise DataError("there are no pictures to load.")
        if self.batch < 1 or self.batch % self.ranks:
            raise ConfigError(
                f"a batch of {self.batch} cannot be shared by {self.ranks} processes",
                try_=f"a multiple of {self.ranks}",
            )

    def __iter__(self) -> Generator[Batch, None, None]:
        batches = read(
            _Steps(self),
            itertools.count(self.start),
            self.reader.room(self.batch // self.ranks),
            workers=self.workers,
            pin=self.pin,
        )
        with contextlib.closing(batches):
            while True:
                asked = time.perf_counter()
                batch = next(batches)
                self.waited += time.perf_counter() - asked
                yield self._noted(batch)

    def at(self, step: int) -> Batch:
        """The batch of one step, from its number alone."""
        return self._noted(_Steps(self)(step))

    def _noted(self, batch: Batch) -> Batch:
        """The batch, its failures counted and named once. Without a picture, it is a step that found no whole one."""
        if not len(batch.images):
            shown = [f"{self.reader.split.keys[index]}: {reason}" for index, reason in batch.failures[-3:]]
            raise DataError(
                f"{len(batch.failures)} pictures one after another cannot be used.",
                such_as=shown,
                try_="vitkit check lists all of them; --set channels=N for pictures of N bands",
            )
        note_failures(self.failures, batch, self.reader.split, self.max_failed)
        return batch


class _Steps:
    """Step number → this process's share of its batch.

    Runs in workers, where an error would come back as a traceback; so what is wrong comes back as a value.
    """

    def __init__(self, loader: Loader):
        self.reader, self.batch = loader.reader, loader.batch
        self.rank, self.ranks = loader.rank, loader.ranks
        self.order = Order(len(loader.reader.split), loader.reader.seed, loader.shuffle)

    def __call__(self, number: int, images: Tensor | None = None) -> Batch:
        asked = self.order.step(number, self.batch, self.rank, self.ranks)
        epochs, indices = zip(*asked, strict=True)
        batch = _Gathering(self.reader, self.reader.room(len(asked)) if images is None else images)
        for (epoch, index), draws in zip(asked, Fast.draw(self.reader.seed, epochs, indices), strict=True):
            if not self._add_first_whole(batch, epoch, index, draws):
                return batch.emptied()
        return batch.whole()

    def _add_first_whole(self, batch: _Gathering, epoch: int, index: int, draws: Sequence[float]) -> bool:
        """The picture, or the first whole one that follows it in the split; whether there is one."""
        count = len(self.reader.split)
        return batch.add(epoch, index, draws) or any(
            batch.add(epoch, (index + offset) % count) for offset in range(1, min(count, NEIGHBOURS))
        )


def evaluation_batches(
    reader: Reader,
    batch: int,
    *,
    workers: int = 0,
    rank: int = 0,
    ranks: int = 1,
    pin: bool = False,
    max_failed: float = 0.01,
) -> Iterator[Batch]:
    """Every picture of the split once, in order; broken ones are left out of their batch and named in it.

    A batch may be empty; a score over what is left, when more than `max_failed` is broken, is an error instead.
    """
    failures: dict[int, str] = {}
    for loaded in batches_in_order(reader, batch, workers=workers, rank=rank, ranks=ranks, pin=pin):
        note_failures(failures, loaded, reader.split, max_failed)
        yield loaded


def batches_in_order(
    reader: Reader, batch: int, *, workers: int = 0, rank: int = 0, ranks: int = 1, pin: bool = False
) -> Iterator[Batch]:
    """The same, with any number of broken pictures: what to make of them is the caller's."""
    mine = range(rank, len(reader.split), ranks)
    chunks = [mine[first : first + batch] for first in range(0, len(mine), batch)]
    if chunks:
        yield from read(
            _Chunks(reader, chunks), range(len(chunks)), reader.room(len(chunks[0])), workers=workers, pin=pin
        )


def note_failures(known: dict[int, str], batch: Batch, split: Split, max_failed: float) -> None:
    """Adds the batch's failures to the known ones; each is named once, and too many are an error."""
    for index, reason in batch.failures:
        if index not in known:
            known[index] = reason
            log.warning("left out: %s: %s", split.keys[index], reason)
    if len(known) > max(max_failed * len(split), ALWAYS_FORGIVEN):
        shown = [f"{split.keys[index]}: {reason}" for index, reason in list(known.items())[:5]]
        raise too_many_broken(len(known), len(split), max_failed, shown)


class _Chunks:
    def __init__(self, reader: Reader, chunks: Sequence[Sequence[int]]):
        self.reader, self.chunks = reader, chunks

    def __call__(self, number: int, images: Tensor | None = None) -> Batch:
        chunk = self.chunks[number]
        batch = _Gathering(self.reader, self.reader.room(len(chunk)) if images is None else images)
        for index in chunk:
            batch.add(0, index)
        return batch.whole()


class _Gathering:
    """A batch while its pictures come in, each written at once to its place in `images`."""

    def __init__(self, reader: Reader, images: Tensor):
        self.reader, self.images = reader, images
        self.places: list[tuple[int, int]] = []
        self.failures: list[tuple[int, str]] = []

    def add(self, epoch: int, index: int, draws: Sequence[float] | None = None) -> bool:
        """Whether the picture could be used."""
        try:
            self.images[len(self.places)] = self.reader(epoch, index, draws)
        except (DecodeError, DataError) as error:
            self.failures.append((index, _reason(error, self.reader.split.keys[index])))
            return False
        self.places.append((epoch, index))
        return True

    def whole(self) -> Batch:
        epochs, indices = np.array(self.places, dtype=np.int64).reshape(-1, 2).T
        labels = torch.from_numpy(self.reader.split.labels[indices])
        return Batch(
            images=self.images[: len(self.places)],
            labels=labels.float() if labels.ndim == 2 else labels,
            indices=torch.from_numpy(indices.copy()),
            epochs=torch.from_numpy(epochs.copy()),
            failures=tuple(self.failures),
        )

    def emptied(self) -> Batch:
        """The failures alone."""
        self.places.clear()
        return self.whole()


def _reason(error: Exception, key: str) -> str:
    """In one line, without the picture's name, which stands beside it."""
    return str(error).splitlines()[0].removeprefix(f"{key} ")
