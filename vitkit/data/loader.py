"""Pictures → batches: the same ones in the same order for any number of workers, from any step on.

A picture that cannot be decoded is named, and the next whole one of the split takes its place; when too many fail, the
run stops instead of training on what is left. Each process counts what it sees: under torchrun the training loop adds
the counts up.

Shapes: B this process's share of a batch, C channels, K classes.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitkit.data.decode import decode
from vitkit.data.order import Order
from vitkit.data.sources.base import DataError, Split
from vitkit.data.transforms import Exact, Fast
from vitkit.errors import ConfigError, DecodeError

ALWAYS_FORGIVEN = 1  # broken pictures, in sets so small that one is more than the share allowed
NEIGHBOURS = 100  # how far the order is searched for a picture in place of a broken one

log = logging.getLogger("vitkit")


@dataclass(frozen=True, kw_only=True)
class Batch:
    images: Tensor  # (B, C, height, width): uint8 for training, normalised float32 for evaluation
    labels: Tensor  # (B,) class indices, -1 where unlabelled; or (B, K) of 0 and 1
    indices: Tensor  # (B,) which pictures of the split these are
    epochs: Tensor  # (B,) which pass over the data each belongs to
    failures: tuple[tuple[int, str], ...] = ()  # pictures that could not be decoded: index, reason

    def to(self, device: torch.device | str) -> Batch:
        """On the device; from pinned memory the copy runs while the host goes on.

        Indices and epochs stay on the host, where augmentation draws from them.
        """
        return replace(self, images=self.images.to(device, non_blocking=True),
                       labels=self.labels.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        return replace(self, images=self.images.pin_memory(), labels=self.labels.pin_memory())


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
            raise ConfigError(f"a batch of {self.batch} cannot be shared by {self.ranks} processes",
                              try_=f"a multiple of {self.ranks}")

    def __iter__(self) -> Generator[Batch, None, None]:
        batches = iter(DataLoader(
            _Steps(self), sampler=_CountUp(self.start), batch_size=None, num_workers=self.workers,
            pin_memory=self.pin, prefetch_factor=4 if self.workers else None, worker_init_fn=_outlive_a_signal,
        ))
        while True:
            asked = time.perf_counter()
            batch = next(batches)
            self.waited += time.perf_counter() - asked
            yield self._noted(batch)

    def at(self, step: int) -> Batch:
        """The batch of one step, from its number alone."""
        return self._noted(_Steps(self)[step])

    def _noted(self, batch: Batch) -> Batch:
        """The batch, its failures counted and named once. Without a picture, it is a step that found no whole one."""
        if not len(batch.images):
            shown = [f"{self.reader.split.keys[index]}: {reason}" for index, reason in batch.failures[-3:]]
            raise DataError(f"{len(batch.failures)} pictures one after another cannot be used.", such_as=shown,
                            try_="vitkit check lists all of them; --set channels=N for pictures of N bands")
        note_failures(self.failures, batch, self.reader.split, self.max_failed)
        return batch


class _CountUp:
    """Step numbers from `start` on, for ever: all that a worker needs to know of its place in the run."""

    def __init__(self, start: int):
        self.start = start

    def __iter__(self) -> Iterator[int]:
        step = self.start
        while True:
            yield step
            step += 1


class _Steps(Dataset[Batch]):
    """Step number → this process's share of its batch.

    Runs in workers, where an error would come back as a traceback; so what is wrong comes back as a value.
    """

    def __init__(self, loader: Loader):
        self.reader, self.batch = loader.reader, loader.batch
        self.rank, self.ranks = loader.rank, loader.ranks
        self.order = Order(len(loader.reader.split), loader.reader.seed, loader.shuffle)

    def __getitem__(self, step: int) -> Batch:
        failures: list[tuple[int, str]] = []
        pictures, places = [], []
        asked = self.order.step(step, self.batch, self.rank, self.ranks)
        epochs, indices = zip(*asked, strict=True)
        for (epoch, index), draws in zip(asked, Fast.draw(self.reader.seed, epochs, indices), strict=True):
            found = self._first_whole(epoch, index, draws, failures)
            if found is None:
                return collate(self.reader, [], [], failures)
            pictures.append(found[0])
            places.append((epoch, found[1]))
        return collate(self.reader, pictures, places, failures)

    def _first_whole(self, epoch: int, index: int, draws: Sequence[float],
                     failures: list[tuple[int, str]]) -> tuple[Tensor, int] | None:
        """The picture, or the first whole one that follows it in the split."""
        count = len(self.reader.split)
        for offset in range(min(count, NEIGHBOURS)):
            candidate = (index + offset) % count
            try:
                return self.reader(epoch, candidate, draws if offset == 0 else None), candidate
            except (DecodeError, DataError) as error:
                failures.append((candidate, _reason(error, self.reader.split.keys[candidate])))
        return None


def evaluation_batches(reader: Reader, batch: int, *, workers: int = 0, rank: int = 0, ranks: int = 1,
                       pin: bool = False, max_failed: float = 0.01) -> Iterator[Batch]:
    """Every picture of the split once, in order; broken ones are left out of their batch and named in it.

    A batch may be empty; a score over what is left, when more than `max_failed` is broken, is an error instead.
    """
    failures: dict[int, str] = {}
    for loaded in batches_in_order(reader, batch, workers=workers, rank=rank, ranks=ranks, pin=pin):
        note_failures(failures, loaded, reader.split, max_failed)
        yield loaded


def batches_in_order(reader: Reader, batch: int, *, workers: int = 0, rank: int = 0, ranks: int = 1,
                     pin: bool = False) -> Iterator[Batch]:
    """The same, with any number of broken pictures: what to make of them is the caller's."""
    mine = range(rank, len(reader.split), ranks)
    chunks = [mine[first:first + batch] for first in range(0, len(mine), batch)]
    yield from DataLoader(_Chunks(reader, chunks), batch_size=None, shuffle=False, num_workers=workers, pin_memory=pin,
                          prefetch_factor=4 if workers else None, worker_init_fn=_outlive_a_signal)


def note_failures(known: dict[int, str], batch: Batch, split: Split, max_failed: float) -> None:
    """Adds the batch's failures to the known ones; each is named once, and too many are an error."""
    for index, reason in batch.failures:
        if index not in known:
            known[index] = reason
            log.warning("left out: %s: %s", split.keys[index], reason)
    if len(known) > max(max_failed * len(split), ALWAYS_FORGIVEN):
        shown = [f"{split.keys[index]}: {reason}" for index, reason in list(known.items())[:5]]
        raise DataError(f"{len(known)} of {len(split):,} pictures could not be decoded so far, more than "
                        f"{max_failed:.1%}.", such_as=shown, try_=["vitkit check lists all of them",
                                                                    "--set max_failed=0.2 goes on without them"])


class _Chunks(Dataset[Batch]):
    def __init__(self, reader: Reader, chunks: Sequence[Sequence[int]]):
        self.reader, self.chunks = reader, chunks

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, chunk: int) -> Batch:
        pictures, places, failures = [], [], []
        for index in self.chunks[chunk]:
            try:
                pictures.append(self.reader(0, index))
                places.append((0, index))
            except (DecodeError, DataError) as error:
                failures.append((index, _reason(error, self.reader.split.keys[index])))
        return collate(self.reader, pictures, places, failures)


def _outlive_a_signal(worker: int) -> None:
    """Ctrl-C, and many a scheduler, signal workers too; whoever uses them finishes a step first, and ends them then."""
    def heard(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, heard)


def _reason(error: Exception, key: str) -> str:
    """In one line, without the picture's name, which stands beside it."""
    return str(error).splitlines()[0].removeprefix(f"{key} ")


def collate(reader: Reader, pictures: list[Tensor], places: list[tuple[int, int]],
            failures: list[tuple[int, str]]) -> Batch:
    epochs, indices = np.array(places, dtype=np.int64).reshape(-1, 2).T
    labels = torch.from_numpy(reader.split.labels[indices])
    return Batch(images=torch.stack(pictures) if pictures else torch.empty(0, reader.channels, *reader.transform.image),
                 labels=labels.float() if labels.ndim == 2 else labels, failures=tuple(failures),
                 indices=torch.from_numpy(indices.copy()), epochs=torch.from_numpy(epochs.copy()))
