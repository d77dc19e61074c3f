"""Bound the memory of large images over all threads of a process: together they decode about one of the largest size.

Small images never wait. Without the bound, a check with sixteen threads would decode sixteen images of 200 megapixels
at a time, which takes tens of gigabytes.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PIXEL_BUDGET = 200_000_000  # of the large images that are decoded at a time
LARGE = 16_000_000  # pixels, from which an image counts


class DecodeMemory:
    """A budget of pixels that threads share."""

    def __init__(self, budget: int = PIXEL_BUDGET) -> None:
        self.budget, self.free = budget, budget
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

    def _release(self) -> None:
        if held := getattr(self.local, "held", 0):
            self.local.held = 0
            with self.changed:
                self.free += held
                self.changed.notify_all()


decode_memory = DecodeMemory()
if hasattr(os, "register_at_fork"):  # a data worker starts with a budget of its own: the others' threads are not there
    os.register_at_fork(after_in_child=lambda: DecodeMemory.__init__(decode_memory))
