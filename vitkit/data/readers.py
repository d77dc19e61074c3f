"""Work in reader processes: numbers → their batches, in the order of the numbers.

torch's DataLoader starts the processes, hands out the numbers and ends the processes; pictures come back through
`Slots`. What a number means, and that its batch is the same in any process, is the work's.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import Protocol

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitkit.data.batch import Batch
from vitkit.data.slots import Slots
from vitkit.data.sources.base import DataError
from vitkit.text import counted

MOMENTS = 3.0  # seconds within which signals, however many, mean the same
AHEAD = 2  # batches of each reader on their way: one slow batch holds nobody up, and all of them are in memory
LEAST_AHEAD = 8  # over all readers, where they are few: a GPU's host runs ahead of it by several steps
WAYS_OUT = [
    "--workers 0, which reads in the process that computes",
    "fewer --workers, where memory has run out; in a container, docker run --memory, --shm-size and "
    "--pids-limit bound what there is",
]
FORKS = sys.platform == "linux"  # elsewhere readers share no memory, and batches come through a pipe


class Work(Protocol):
    def __call__(self, number: int, images: Tensor | None = None) -> Batch:
        """The batch of a number, its pictures written to the first of `images`, or to memory of their own."""


def read(
    work: Work, numbers: Iterable[int], like: Tensor, *, workers: int, pin: bool = False
) -> Generator[Batch, None, None]:
    """Batches of the numbers' work, by `workers` readers or, with none, in this process; in memory of their own.

    `like` is of the shape and type of the largest batch's pictures.
    """
    if not workers:
        for number in numbers:
            batch = work(number)
            yield batch.pin_memory() if pin else batch
        return
    batches = _start(work, numbers, like, workers, pin)
    try:
        for sent in batches:
            if isinstance(sent, _Sent):
                batch = sent.batch if sent.out else replace(sent.batch, images=sent.batch.images.clone())
                sent.slots.give_back(sent.place)
                yield batch
            else:
                yield sent
    except RuntimeError as error:
        raise lost_reader(error) or error from error


def lost_reader(error: RuntimeError) -> DataError | None:
    """What torch says when a reader has died, for people. Its handler of that signal interrupts whatever runs just
    then, so it may come from anywhere."""
    if "DataLoader worker" not in str(error):
        return None
    return DataError("a reader process has ended before its work.", found=str(error).splitlines()[0], try_=WAYS_OUT)


def in_flight(workers: int) -> int:
    """Batches that are being read, or have been and wait."""
    return workers * max(AHEAD, -(-LEAST_AHEAD // workers))


@dataclass(frozen=True)
class _Sent:
    """A batch that comes from a reader."""

    batch: Batch
    slots: Slots
    place: int
    out: bool = False  # its pictures have been copied out of their place

    def pin_memory(self) -> _Sent:
        """Called by a thread of the DataLoader's, while this process computes."""
        return replace(self, batch=self.batch.pin_memory(), out=True)

    def __reduce__(self) -> tuple[Callable[[Batch, Slots, int, int], _Sent], tuple[Batch, Slots, int, int]]:
        """All but the pictures, which are where the other side finds them."""
        rest = replace(self.batch, images=self.batch.images[:0])
        return _arrived, (rest, self.slots, self.place, len(self.batch.images))


def _arrived(rest: Batch, slots: Slots, place: int, pictures: int) -> _Sent:
    return _Sent(replace(rest, images=slots[place][:pictures]), slots, place)


class _Tasks(Dataset[Batch | _Sent]):
    def __init__(self, work: Work, slots: Slots | None):
        self.work, self.slots = work, slots

    def __getitem__(self, task: tuple[int, int | None]) -> Batch | _Sent:
        number, place = task
        if self.slots is None or place is None:
            return self.work(number)
        return _Sent(self.work(number, self.slots[place]), self.slots, place)


def _start(work: Work, numbers: Iterable[int], like: Tensor, workers: int, pin: bool) -> Iterator[Batch | _Sent]:
    try:
        # one more than are on their way: the next number is given out before the batch that has come is copied
        slots = Slots(in_flight(workers) + 1, like) if FORKS else None
        return iter(
            DataLoader(
                _Tasks(work, slots),
                sampler=((number, slots.take() if slots else None) for number in numbers),
                batch_size=None,
                num_workers=workers,
                prefetch_factor=in_flight(workers) // workers,
                pin_memory=pin,
                worker_init_fn=_outlive_a_signal,
                multiprocessing_context="fork" if FORKS else None,
            )
        )
    except OSError as error:  # of processes, of memory, or of the semaphores that Python keeps in /dev/shm
        raise DataError(
            f"{counted(workers, 'data worker')} cannot be started: {error.strerror or error}.",
            try_=WAYS_OUT,
        ) from error


def _outlive_a_signal(worker: int) -> None:
    """Ctrl-C, and many a scheduler, signal workers too, some more than once; whoever uses them finishes a step first,
    and ends them then."""
    first = math.inf

    def heard(number: int, frame: FrameType | None) -> None:
        nonlocal first
        first = min(first, time.monotonic())
        if time.monotonic() - first > MOMENTS:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    for number in ("SIGINT", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, number):
            signal.signal(getattr(signal, number), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, heard)
