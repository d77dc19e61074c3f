"""What a process and its children hold: memory, file descriptors, threads and processes; and whether it stays level."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PAGE = os.sysconf("SC_PAGE_SIZE")
WINDOWS = 30  # of a series: a minute each in the second half of an hour
FLOOR = 0.1  # quantile of a window: what is held between the peaks, such as the pixels of one large image


@dataclass(frozen=True)
class Usage:
    seconds: float
    resident_mb: float  # summed over the processes: pages that they share count for each
    descriptors: int
    threads: int
    processes: int


def measure(pid: int, seconds: float) -> Usage:
    """Return what the process and its descendants hold now; one that ends meanwhile counts as nothing."""
    memory = descriptors = threads = processes = 0
    for process in descendants(pid):
        try:
            memory += int((process / "statm").read_text().split()[1]) * PAGE
            descriptors += len(os.listdir(process / "fd"))
            threads += len(os.listdir(process / "task"))
            processes += 1
        except (OSError, IndexError):
            continue
    return Usage(seconds, memory / 1e6, descriptors, threads, processes)


def descendants(pid: int) -> list[Path]:
    """Return the folders in /proc of a process and its descendants."""
    found, waiting = [], [pid]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        found.append(process)
        try:
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def growth(seconds: np.ndarray, values: np.ndarray, windows: int = WINDOWS) -> float:
    """Return by how much a series grows from its first to its last moment, along a line through it.

    The line's slope is the median of the slopes between all pairs of windows (Theil and Sen), where a window counts
    with the floor of its samples: neither peaks nor one step up and down move it, and a leak does.
    """
    parts = np.array_split(np.arange(len(values)), min(windows, len(values)))
    x = np.array([np.median(seconds[part]) for part in parts])
    y = np.array([np.quantile(values[part], FLOOR) for part in parts])
    first, second = np.triu_indices(len(x), 1)
    apart = x[second] > x[first]
    slopes = (y[second] - y[first])[apart] / (x[second] - x[first])[apart]
    return float(np.median(slopes) * (seconds[-1] - seconds[0])) if len(slopes) else 0.0
