"""Timing on a device: seconds of each call, time of the first one, peak memory."""

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch

MIN_CALLS = 3  # calls that a median needs, however short the time limit

Subject = TypeVar("Subject")
Work = Callable[[], object]  # a training step or a forward pass; it need not synchronize


@dataclass(frozen=True)
class Prepared:
    """Work after warm-up."""

    work: Work
    first_seconds: float  # of building and the first call, with kernel loading and compilation
    peak_bytes: int | None  # allocated while it runs; None on a CPU


@dataclass(frozen=True, kw_only=True)
class Result:
    """The measurement of a row: the times of calls with `batch` images each."""

    batch: int
    flops: int  # of one image, in closed form
    times: tuple[float, ...]  # seconds of each call
    first_seconds: float
    peak_bytes: int | None
    compiled: bool

    @property
    def seconds(self) -> float:
        return statistics.median(self.times)

    @property
    def compile_seconds(self) -> float | None:
        """Return how much longer the first call took than the others."""
        return max(self.first_seconds - self.seconds, 0.0) if self.compiled else None

    def record(self, ceiling: float) -> dict[str, Any]:
        """Return the result as JSON data; `ceiling` is the peak FLOP/s."""
        rate = self.batch / self.seconds
        return {
            "batch": self.batch,
            "images_per_second": rate,
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
) -> Prepared:
    """Build the work from a new subject and call it `warmups` times.

    Making the subject is not timed, and memory that only compilation needs is not counted.
    """
    on_gpu = device.type == "cuda"
    empty_cache(device)  # or garbage of earlier work counts as allocated, and is freed while this one runs
    allocated = torch.cuda.memory_allocated(device) if on_gpu else 0
    subject = make()
    synchronize(device)
    started = time.perf_counter()
    work = build(subject)
    del subject
    work()
    synchronize(device)
    first = time.perf_counter() - started
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(warmups - 1):
        work()
    synchronize(device)
    return Prepared(work, first, torch.cuda.max_memory_allocated(device) - allocated if on_gpu else None)


def time_calls(
    work: Work, device: torch.device, steps: int, *, synchronous: bool = False, seconds: float = math.inf
) -> tuple[float, ...]:
    """Return the seconds of each of `steps` calls, or of as many as `seconds` allow.

    On a GPU a call is queued while the previous one runs, as in training; with `synchronous`, each call is waited for,
    as in serving single images.
    """
    synchronize(device)
    if device.type == "cuda" and not synchronous:
        return _queued(work, device, steps)
    times: list[float] = []
    while len(times) < steps and (len(times) < MIN_CALLS or sum(times) < seconds):
        started = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - started)
    return tuple(times)


def _queued(work: Work, device: torch.device, steps: int) -> tuple[float, ...]:
    stream = torch.cuda.current_stream(device)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    work()  # not timed: the first timed call is queued behind it
    events[0].record(stream)
    for event in events[1:]:
        work()
        event.record(stream)
    synchronize(device)
    return tuple(before.elapsed_time(after) / 1000 for before, after in pairwise(events))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def empty_cache(device: torch.device) -> None:
    """Free unreferenced memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def release(device: torch.device) -> None:
    """Free memory and all compiled code: torch limits the recompilations of a function over all models."""
    torch.compiler.reset()
    empty_cache(device)


# of allocations outside of torch's allocator: on a CPU, by cuBLAS and cuDNN, and by CUDA itself
OUT_OF_MEMORY = ("DefaultCPUAllocator", "ALLOC_FAILED", "CUDA error: out of memory")


def out_of_memory(error: BaseException) -> bool:
    """Return whether memory was lacking, whoever has asked for it."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return any(text in str(error) for text in OUT_OF_MEMORY)
