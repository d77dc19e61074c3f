"""Where a run computes, in which numbers, with how many readers."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch

from vitkit.errors import ConfigError

Precision = Literal["bf16", "fp32"]

MOST_READERS = 16
SMALL = 50_000_000  # multiply-adds for a picture, up to which computing takes about as long as reading


def pick_device(name: str) -> torch.device:
    """ "auto" is the GPU where there is one; under torchrun, each process takes its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device = {name!r} is not known", try_="auto, cuda, cuda:1, cpu or mps") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            built = "" if torch.version.cuda else ", built without CUDA"
            raise ConfigError(
                "device = cuda: no CUDA device can be used here",
                found=f"torch {torch.__version__}{built}",
                try_="--device cpu",
            )
        index = device.index if device.index is not None else int(os.environ.get("LOCAL_RANK", 0))
        if index >= torch.cuda.device_count():
            raise ConfigError(
                f"device = cuda:{index}: there are {torch.cuda.device_count()} CUDA devices here, counted from 0",
                try_="--device cuda, or no more processes than devices",
            )
        device = torch.device("cuda", index)
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device = mps: there is no Apple GPU here", try_="--device cpu")
    elif device.type not in ("cuda", "mps", "cpu"):
        raise ConfigError(f"device = {name} is not supported", try_="auto, cuda, cuda:1, cpu or mps")
    return device


def pick_precision(asked: str, device: torch.device) -> Precision:
    """bf16 where the device multiplies it natively; a CPU is asked for it by name, for it costs exactness there."""
    if asked != "auto":
        return "bf16" if asked == "bf16" else "fp32"
    return "bf16" if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"


def pick_readers(asked: int | None, device: torch.device, processes: int) -> int:
    """Processes that decode pictures: all cores feed a GPU; beside training on the CPU, one of them is enough."""
    if asked is not None:
        return asked
    share = cores() // processes
    return max(1, min(share - 1, MOST_READERS)) if device.type != "cpu" else 1


def pick_threads(device: torch.device, macs: int) -> int:
    """A small model leaves a core to the readers, who have as much to do as it has. Whether there are any is not asked:
    threads decide the last bits of sums, and a run is to be the same with any number of readers.

    Threads that share a core with somebody wait for each other at every layer: with fashion's demo on two cores, two
    threads were 1.4 times as fast as one on a quiet machine, and a tenth as fast beside one other busy process.
    """
    threads = torch.get_num_threads()
    return max(1, min(threads, cores() - 1)) if device.type == "cpu" and macs < SMALL else threads


@contextlib.contextmanager
def computing_with(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_device(device: torch.device, threads: int) -> str:
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    if device.type == "mps":
        return "mps, an Apple GPU (allowed, but not tested by us)"
    return f"cpu, {threads} thread{'s' * (threads != 1)}"


def describe_machine() -> str:
    return f"{cores()} CPU cores, {platform.machine()}, {platform.system()}"


def free_memory(device: torch.device) -> int:
    """Bytes that a run may hope for: on a GPU also those that torch has and nobody uses. On the CPU all there are: what
    is free changes with every file that is read, and a run's parts, which mixing and dropout depend on, are not to."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limit = Path("/sys/fs/cgroup/memory.max")  # of a container
        told = limit.read_text().strip() if limit.is_file() else "max"
        return min(memory, int(told)) if told.isdigit() else memory
    except (ValueError, OSError, AttributeError):
        return 4 * 2**30
