"""Bound the memory of large images over all threads of a process: together they decode about one of the largest size.

Small images never wait. Without the bound, a check with sixteen threads would decode sixteen images of 200 megapixels
at a time, which takes tens of gigabytes. Data workers are processes, each with a budget of its own; of the images that
no camera takes, they decode one at a time.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

fcntl: Any = None
with contextlib.suppress(ImportError):  # Windows, where nothing forks
    import fcntl

PIXEL_BUDGET = 200_000_000  # of the large images that are decoded at a time
LARGE = 16_000_000  # pixels, from which an image counts
ENORMOUS = 64_000_000  # pixels above which one data worker at a time decodes an image; full-frame cameras have 61


class DecodeMemory:
    """A budget of pixels that threads share."""

    def __init__(self, budget: int = PIXEL_BUDGET, turn: WorkerTurn | None = None) -> None:
        self.budget, self.free = budget, budget
        self.turn = turn  # None: this is no data worker
        self.changed = threading.Condition()
        self.local = threading.local()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep what this thread reserves inside until the end, where the pixels are used after they are decoded."""
        outermost = not getattr(self.local, "holding", False)
        self.local.holding = True
        try:
            yield
        finally:
            if outermost:
                self.local.holding = False
                self._release()

    def reserve(self, pixels: int) -> None:
        """Wait until an image of that size fits; only inside `hold`.

        A thread has one reservation, for the larger of its images: two threads that waited for a second one while they
        held a first could wait for each other.
        """
        held = getattr(self.local, "held", 0)
        needed = min(pixels, self.budget)  # an image over the budget is decoded alone
        if pixels < LARGE or needed <= held:
            return
        self._release()
        with self.changed:
            self.changed.wait_for(lambda: self.free >= needed)
            self.free -= needed
        self.local.held = needed
        if self.turn is not None and pixels > ENORMOUS:
            self.turn.take()
            self.local.has_turn = True

    def _release(self) -> None:
        if held := getattr(self.local, "held", 0):
            self.local.held = 0
            if self.turn is not None and getattr(self.local, "has_turn", False):
                self.local.has_turn = False
                self.turn.give_back()
            with self.changed:
                self.free += held
                self.changed.notify_all()


class WorkerTurn:
    """A turn that one of several processes has at a time, by a lock that the kernel gives back where one is killed."""

    def __init__(self) -> None:
        self.file: IO[bytes] | None = None

    def prepare(self) -> None:
        """Open the file that the processes share, before they are forked."""
        if self.file is None and fcntl is not None:
            with contextlib.suppress(OSError):  # without a place for temporary files, nobody waits
                self.file = tempfile.TemporaryFile()  # noqa: SIM115

    def take(self) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.lockf(self.file, fcntl.LOCK_EX)

    def give_back(self) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError):
                fcntl.lockf(self.file, fcntl.LOCK_UN)


decode_memory = DecodeMemory()
_turn = WorkerTurn()
if hasattr(os, "register_at_fork"):  # a data worker starts with a budget of its own: the others' threads are not there
    os.register_at_fork(before=_turn.prepare, after_in_child=lambda: DecodeMemory.__init__(decode_memory, turn=_turn))
