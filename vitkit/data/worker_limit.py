"""Limits on processes, threads and open files: how many data workers the system lets this process start.

A worker that cannot start its thread dies after it was counted as started, and the others then wait for ever. So the
processes and threads that all of them need are tried out first, as threads, which every such limit counts as well.
"""

import contextlib
import logging
import os
import threading
import time
from typing import Any

import torch

from vitkit.text import counted

resource: Any = None
with contextlib.suppress(ImportError):  # Windows has none, and no such limits
    import resource

TASKS_PER_WORKER = 3  # its process, the thread in it that sends batches, and the thread here that sends it numbers
FILES_PER_WORKER = 4  # the ends of its pipes that this process holds
SPARE_FILES = 24  # for images, metrics and checkpoints
_SECONDS_TO_END = 1.0  # at most, for the threads that were tried out

log = logging.getLogger("vitkit")
_noted: set[tuple[int, int]] = set()


def startable_workers(requested: int) -> int:
    """Return how many of the workers the system lets this process start; fewer than requested are worth a note."""
    spare = torch.get_num_threads() + 2  # this process's own: for products, pinned memory and the progress bar
    tasks = startable_tasks(requested * TASKS_PER_WORKER + spare) - spare
    files = _openable_files(requested * FILES_PER_WORKER + SPARE_FILES) - SPARE_FILES
    by_tasks, by_files = max(0, tasks) // TASKS_PER_WORKER, max(0, files) // FILES_PER_WORKER
    workers = min(requested, by_tasks, by_files)
    if (
        workers < requested and (requested, workers) not in _noted
    ):  # training, validation and scoring start workers each
        _noted.add((requested, workers))
        log.warning(
            "%s cannot be started: the limit on %s is too low; %s the images instead, which may be slower",
            counted(requested, "data worker"),
            "processes and threads (ulimit -u, or --pids-limit of a container)"
            if by_tasks <= by_files
            else "open files (ulimit -n)",
            f"{workers} load" + "s" * (workers == 1) if workers else "the main process loads",
        )
    return workers


def startable_tasks(requested: int) -> int:
    """Return how many of so many threads can be started; they end at once."""
    before, end, threads = _entries("task"), threading.Event(), list[threading.Thread]()
    with contextlib.suppress(RuntimeError, MemoryError):  # "can't start new thread"
        for _ in range(requested):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            threads.append(thread)
    end.set()
    for thread in threads:
        thread.join()
    until = time.monotonic() + _SECONDS_TO_END  # Python counts a thread as ended a moment before the system does
    while _entries("task") > before and time.monotonic() < until:
        time.sleep(0.001)
    return len(threads)


def _openable_files(requested: int) -> int:
    """Return how many of so many files can be opened, with the soft limit raised if the hard one permits it."""
    if resource is None:
        return requested
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = requested + _entries("fd")
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return requested
    with contextlib.suppress(ValueError, OSError):
        soft_allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft_allowed, hard))
        soft = soft_allowed
    return requested - max(0, needed - soft)


def _entries(kind: str) -> int:
    """Return how many threads ("task") or open files ("fd") this process has, 0 where the system does not tell."""
    try:
        return len(os.listdir(f"/proc/self/{kind}"))
    except OSError:  # not Linux
        return 0
