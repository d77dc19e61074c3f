"""Data workers: processes that compute numbered batches, which arrive in the order of the numbers.

torch's DataLoader starts the processes, hands out the numbers and ends the processes; images come back through
`SharedBuffers`. The batch function decides what a number means; its batch has to be the same in any process.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Protocol

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitkit.data.batch import Batch
from vitkit.data.forking import objects_kept
from vitkit.data.shared_buffers import SharedBuffers
from vitkit.data.sources.dataset import DataError
from vitkit.data.worker_limit import startable_workers
from vitkit.errors import VitkitError
from vitkit.text import counted
from vitkit.torch_private import SIGCHLD_HANDLER, worker_processes

SIGNAL_GRACE = 3.0  # seconds within which repeated signals count as one
PREFETCH = 2  # batches per worker: one slow batch delays nobody, and all of them are in memory
MIN_PREFETCH = 8  # over all workers, where they are few: a GPU's host runs ahead of it by several steps
REMEDIES = [
    "--workers 0, which loads images in the main process",
    "fewer --workers, if memory has run out; in a container, docker run --memory, --shm-size and "
    "--pids-limit set the limits",
]
CAN_FORK = sys.platform == "linux"  # elsewhere workers share no memory, and batches come through a pipe


class BatchFunction(Protocol):
    def __call__(self, number: int, images: Tensor | None = None) -> Batch:
        """Return the batch of a number, its images written to the first rows of `images` or to new memory."""


def load_batches(
    make_batch: BatchFunction,
    numbers: Iterable[int],
    like: Tensor,
    *,
    workers: int,
    pin_memory: bool = False,
    lend: int = 0,
) -> Generator[Batch, None, None]:
    """Yield the batches of the numbers, each in memory of its own; with 0 workers, this process computes them.

    `like` has the shape and dtype of the largest batch's images. Where the system lets fewer workers start, fewer do.
    With `lend`, images stay in the buffer that a worker decoded them to, and are valid until the batch that comes so
    many later is requested: nothing is copied on the host, and pinned memory is what the workers write to.
    """
    if workers:
        workers = startable_workers(workers)
    if not workers:
        for number in numbers:
            batch = make_batch(number)
            yield batch.pin_memory() if pin_memory else batch
        return
    batches, buffers = _start_workers(make_batch, numbers, like, workers, pin_memory, lend)
    shares_buffers = buffers is not None and lend > 0 and (not pin_memory or buffers.pin())
    lent: deque[int] = deque()
    try:
        for received in batches:
            if isinstance(received, VitkitError):
                raise received
            if not isinstance(received, _WorkerBatch):
                yield received
            elif shares_buffers:
                yield received.batch
                lent.append(received.slot)
                if len(lent) == lend:
                    received.buffers.release(lent.popleft())
            else:
                batch = received.own_batch(pin_memory)
                received.buffers.release(received.slot)
                yield batch
    except RuntimeError as error:
        lost = lost_worker(error, worker_processes(batches))
        if lost is None:
            raise
        _kill(worker_processes(batches))
        raise lost from error


def lost_worker(error: RuntimeError, processes: Sequence[BaseProcess] = ()) -> DataError | None:
    """Return the error to show if torch raised this one because a data worker died, else None.

    torch has no exception class for it (seen in 2.13). It raises either while a batch is awaited, where the exit codes
    of the worker processes tell, or in its SIGCHLD handler, which interrupts whatever runs, so that the error can
    surface anywhere; there the handler's module is the last frame. The message is the last resort, for a torch that has
    moved either. Errors raised inside a worker ("Caught … in DataLoader worker process 0") match none of the three.
    """
    modules = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)]
    died = any(process.exitcode for process in processes)
    in_handler = modules[-1:] == [SIGCHLD_HANDLER]
    if not (died or in_handler or re.match(r"DataLoader worker \(pid", str(error))):
        return None
    return DataError("a data worker has died.", found=str(error).partition("\n")[0], try_=REMEDIES)


def prefetched_batches(workers: int) -> int:
    """Return how many batches are being loaded, or loaded and waiting, at a time."""
    return workers * max(PREFETCH, -(-MIN_PREFETCH // workers))


@dataclass(frozen=True)
class _WorkerBatch:
    """A batch whose images are in a shared buffer."""

    batch: Batch
    buffers: SharedBuffers
    slot: int
    copied: bool = False  # the images have been copied out of the buffer

    def own_batch(self, pin_memory: bool) -> Batch:
        """Return the batch in memory of its own."""
        if self.copied:
            return self.batch
        return self.batch.pin_memory() if pin_memory else replace(self.batch, images=self.batch.images.clone())

    def pin_memory(self) -> _WorkerBatch:
        """Copy the batch to pinned memory; a thread of the DataLoader calls this while the main thread computes."""
        return replace(self, batch=self.batch.pin_memory(), copied=True)

    def __reduce__(self) -> tuple[Callable[..., _WorkerBatch], tuple[Batch, SharedBuffers, int, int]]:
        """Pickle everything but the images, which stay in the shared buffer."""
        rest = replace(self.batch, images=self.batch.images[:0])
        return _receive, (rest, self.buffers, self.slot, len(self.batch.images))


def _receive(rest: Batch, buffers: SharedBuffers, slot: int, count: int) -> _WorkerBatch:
    return _WorkerBatch(replace(rest, images=buffers[slot][:count]), buffers, slot)


class _BatchDataset(Dataset[Batch | _WorkerBatch | VitkitError]):
    def __init__(self, make_batch: BatchFunction, buffers: SharedBuffers | None):
        self.make_batch, self.buffers = make_batch, buffers

    def __getitem__(self, task: tuple[int, int | None]) -> Batch | _WorkerBatch | VitkitError:
        number, slot = task
        try:
            if self.buffers is None or slot is None:
                return self.make_batch(number)
            return _WorkerBatch(self.make_batch(number, self.buffers[slot]), self.buffers, slot)
        except VitkitError as error:  # torch would raise it with the worker's traceback in its text
            return error


def _start_workers(
    make_batch: BatchFunction, numbers: Iterable[int], like: Tensor, workers: int, pin_memory: bool, lend: int
) -> tuple[Iterator[Batch | _WorkerBatch | VitkitError], SharedBuffers | None]:
    before = set(multiprocessing.active_children())
    try:
        # one more than are prefetched: torch hands out the next number before the received batch is copied
        buffers = SharedBuffers(prefetched_batches(workers) + 1 + lend, like) if CAN_FORK else None
        with warnings.catch_warnings():  # the user may start more workers than there are cores
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            loader = DataLoader(
                _BatchDataset(make_batch, buffers),
                sampler=((number, buffers.acquire() if buffers else None) for number in numbers),
                batch_size=None,
                num_workers=workers,
                prefetch_factor=prefetched_batches(workers) // workers,
                pin_memory=pin_memory and (buffers is None or not lend),
                worker_init_fn=_ignore_signals,
                multiprocessing_context="fork" if CAN_FORK else None,
            )
            with objects_kept():
                return iter(loader), buffers
    except (OSError, RuntimeError) as error:
        # too many processes, threads or open files, no memory, or no room for Python's semaphores in /dev/shm
        _kill(set(multiprocessing.active_children()) - before)
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise DataError(f"{counted(workers, 'data worker')} cannot be started: {reason}.", try_=REMEDIES) from error


def _kill(processes: Iterable[BaseProcess]) -> None:
    """End workers that nobody will tell to end: they outlive SIGTERM, and Python would wait for them when it exits."""
    for process in processes:
        process.kill()
        process.join()


def _ignore_signals(worker: int) -> None:
    """Make a worker survive the signals meant for the main process, which finishes its step and then ends the workers.

    Ctrl-C and many schedulers signal every process of the group, some more than once.
    """
    first = math.inf

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        nonlocal first
        first = min(first, time.monotonic())
        if time.monotonic() - first > SIGNAL_GRACE:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    for name in ("SIGINT", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, on_sigterm)
