"""How long a piece of work takes on its device, what it takes to get ready, and how much memory it needs there."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch

FEWEST = 3  # steps that a median is taken of, however little time there is

Subject = TypeVar("Subject")
Work = Callable[[], object]  # a step of training, or a batch answered; it need not wait for its device


@dataclass(frozen=True)
class Ready:
    """Work that was done a few times."""

    work: Work
    first_seconds: float  # from nothing to done once: loading kernels, and compiling where that is asked for
    peak_bytes: int | None  # held and needed while it runs; a CPU does not tell


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was measured of pictures that are computed `batch` at a time."""

    batch: int
    flops: int  # of one picture, in closed form
    times: tuple[float, ...]  # seconds of each step
    first_seconds: float
    peak_bytes: int | None
    compiled: bool

    @property
    def seconds(self) -> float:
        return statistics.median(self.times)

    @property
    def compile_seconds(self) -> float | None:
        """What the first time took longer than the others."""
        return max(self.first_seconds - self.seconds, 0.0) if self.compiled else None

    def record(self, ceiling: float) -> dict[str, Any]:
        """As plain data; `ceiling` in floating-point operations a second."""
        rate = self.batch / self.seconds
        return {
            "batch": self.batch,
            "pictures_per_second": rate,
            "milliseconds": 1000 * self.seconds,
            "fastest_milliseconds": 1000 * min(self.times),
            "slowest_milliseconds": 1000 * max(self.times),
            "steps": len(self.times),
            "flops_per_second": rate * self.flops,
            "share_of_ceiling": rate * self.flops / ceiling,
            "peak_bytes": self.peak_bytes,
            "compile_seconds": self.compile_seconds,
            "first_seconds": self.first_seconds,
        }


def prepare(
    make: Callable[[], Subject], build: Callable[[Subject], Work], device: torch.device, *, warmups: int
) -> Ready:
    """Built from what is made and not kept, and done `warmups` times: making it is not timed, and memory that only
    compiling needs is not counted."""
    on_gpu = device.type == "cuda"
    free(device)  # or what others left behind counts as held, and goes while this one runs
    held = torch.cuda.memory_allocated(device) if on_gpu else 0
    subject = make()
    synchronise(device)
    started = time.perf_counter()
    work = build(subject)
    del subject
    work()
    synchronise(device)
    first = time.perf_counter() - started
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(warmups - 1):
        work()
    synchronise(device)
    return Ready(work, first, torch.cuda.max_memory_allocated(device) - held if on_gpu else None)


def timed(
    work: Work, device: torch.device, steps: int, *, alone: bool = False, seconds: float = math.inf
) -> tuple[float, ...]:
    """Seconds of each of `steps`, or of as many as `seconds` allow.

    On a GPU a step is queued while the one before it runs, as in a training run; `alone`, each is waited for, as by
    somebody who asks for one answer.
    """
    synchronise(device)
    if device.type == "cuda" and not alone:
        return _queued(work, device, steps)
    times: list[float] = []
    while len(times) < steps and (len(times) < FEWEST or sum(times) < seconds):
        started = time.perf_counter()
        work()
        synchronise(device)
        times.append(time.perf_counter() - started)
    return tuple(times)


def _queued(work: Work, device: torch.device, steps: int) -> tuple[float, ...]:
    stream = torch.cuda.current_stream(device)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    work()  # not counted: behind it, the first is queued like the others
    marks[0].record(stream)
    for mark in marks[1:]:
        work()
        mark.record(stream)
    synchronise(device)
    return tuple(before.elapsed_time(after) / 1000 for before, after in pairwise(marks))


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def free(device: torch.device) -> None:
    """Memory that nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def release(device: torch.device) -> None:
    """Memory, and all compiled code: torch compiles a function a few times only, whatever models it was for."""
    torch.compiler.reset()
    free(device)


def out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)
