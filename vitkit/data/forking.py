"""Processes that are forked from this one and share its objects, which only this process may free."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def objects_kept() -> Iterator[None]:
    """Keep everything made so far out of the garbage collection of the processes that are forked meanwhile.

    A process that collects a CUDA graph of its parent is ended by the driver.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
