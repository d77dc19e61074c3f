"""Device, precision, data workers and threads of a run."""

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch

from vitkit.errors import ConfigError
from vitkit.launcher import launch

TrainPrecision = Literal["bf16", "fp32"]

MAX_WORKERS = 16
SMALL_MODEL_MACS = 50_000_000  # per image, up to which the model takes about as long as decoding


def pick_device(name: str) -> torch.device:
    """Return the device by name; "auto" takes a GPU if there is one, a different one in each process of a launcher."""
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
                "device = cuda: torch can use no CUDA device on this machine",
                found=f"torch {torch.__version__}{built}",
                try_="--device cpu",
            )
        visible = torch.cuda.device_count()
        index = device.index if device.index is not None else launch().device_index(visible)
        if index >= visible:
            raise ConfigError(
                f"device = cuda:{index}: this machine has {visible} CUDA devices, counted from 0",
                try_="--device cuda, or no more processes than devices",
            )
        device = torch.device("cuda", index)
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device = mps: this machine has no Apple GPU that torch can use", try_="--device cpu")
    elif device.type not in ("cuda", "mps", "cpu"):
        raise ConfigError(f"device = {name} is not supported", try_="auto, cuda, cuda:1, cpu or mps")
    return device


def pick_precision(requested: str, device: torch.device) -> TrainPrecision:
    """Return the precision; "auto" takes bf16 on a GPU that multiplies it natively, and fp32 on a CPU."""
    if requested != "auto":
        return "bf16" if requested == "bf16" else "fp32"
    return "bf16" if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"


def pick_workers(requested: int | None, device: torch.device, processes: int) -> int:
    """Return the number of data workers; default: a GPU gets all cores, training on the CPU gets one worker."""
    if requested is not None:
        return requested
    share = cores() // processes
    return max(1, min(share - 1, MAX_WORKERS)) if device.type != "cpu" else 1


def pick_threads(device: torch.device, macs: int) -> int:
    """Return the number of threads: a small model on the CPU leaves a core to the data workers.

    The actual number of workers must not matter: threads determine the last bits of sums, and a run has the same
    result with any number of workers. Threads that share a core with another process wait for each other at every
    layer: with fashion's demo on two cores, two threads were 1.4 times as fast as one on an idle machine, and a tenth
    as fast next to one other busy process.
    """
    threads = torch.get_num_threads()
    return max(1, min(threads, cores() - 1)) if device.type == "cpu" and macs < SMALL_MODEL_MACS else threads


@contextlib.contextmanager
def use_threads(threads: int) -> Iterator[None]:
    """Set torch's number of threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes_sharing_cores() -> int:
    """Return the number of processes of this run among which those cores are divided."""
    return launch().sharing(cores())


def describe_device(device: torch.device, threads: int) -> str:
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    if device.type == "mps":
        return "mps, an Apple GPU (allowed, but not tested by us)"
    return f"cpu, {threads} thread{'s' * (threads != 1)}"


def describe_machine() -> str:
    return f"{cores()} CPU cores, {platform.machine()}, {platform.system()}"


_on_gpu = _on_host = 1  # processes that take what is free there at the same time


def share_memory(on_gpu: int, on_host: int) -> None:
    """Say that so many processes take their shares of the same memory: each counts its part of what is free."""
    global _on_gpu, _on_host
    _on_gpu, _on_host = on_gpu, on_host


def free_memory(device: torch.device) -> int:
    """Return the bytes that a run can use: on a GPU the free ones and torch's unused cache, on the CPU all memory.

    Free memory on the CPU changes with every file that is read; the micro-batch, which mixup and dropout depend on,
    must not.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] // _on_gpu + unused
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limit = Path("/sys/fs/cgroup/memory.max")  # of a container
        text = limit.read_text().strip() if limit.is_file() else "max"
        return min(memory, int(text)) if text.isdigit() else memory
    except (ValueError, OSError, AttributeError):
        return 4 * 2**30


def available_memory() -> int:
    """Return the bytes of host memory that are free now, or can be freed at once, within the limit of a container.

    Where the system does not tell, a quarter of all memory counts as free.
    """
    return _available_memory() // _on_host


def _available_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return free_memory(torch.device("cpu")) // 4
    folder = Path("/sys/fs/cgroup")  # of a container
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        counters = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(counters["inactive_file"]))  # pages of files are given up when needed
    except (OSError, ValueError, KeyError):  # no container, or one without a limit ("max")
        return free
