"""The threads that make masks of scores: upsampling takes far longer than the model where an image is large.

One thread takes short jobs, in fair turns, so that a photo never waits for a panorama. Large images have threads of
their own, which let the model and small images come first. They take a turn before they are decoded, which bounds what
they hold: their windows and scores.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from vitkit.serve.decode_process import NICENESS
from vitkit.serve.fair_slots import FairSlots
from vitkit.serve.fair_thread import FairThread

T = TypeVar("T")
LARGE_AT_A_TIME = 2  # images that are cut into windows, or have many scores to upsample


class MaskStopped(Exception):
    """Nobody waits for this mask any more."""


class LargeMask:
    """A large mask in its thread, which the event loop ends once nobody waits for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._awaited: Future[Any] | None = None

    def check(self) -> None:
        """Raise MaskStopped if nobody waits for the mask any more; its thread calls this every now and then."""
        if self._ended:
            raise MaskStopped

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Have the event loop run the coroutine, and return its result; MaskStopped as soon as nobody waits for it."""
        self._awaited = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        if self._ended:  # in the moment before
            self._awaited.cancel()
        try:
            result: T = self._awaited.result()
        except CancelledError:
            raise MaskStopped from None
        return result

    def end(self) -> None:
        self._ended = True
        if self._awaited is not None:
            self._awaited.cancel()


class MaskThreads:
    """The threads of all models of a server. Each computes alone: the cores are the model's and the decoders'."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "vitkit-masks", torch.set_num_threads, (1,))
        self._large_executor = ThreadPoolExecutor(LARGE_AT_A_TIME, "vitkit-large-masks", _start_large_thread)
        self.small = FairThread(self._executor)
        self.large_turns = FairSlots(LARGE_AT_A_TIME)

    async def run_large(self, work: Callable[[LargeMask], T]) -> T:
        """Return the result of the work, for a client who holds one of `large_turns`."""
        mask = LargeMask()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._large_executor, work, mask)
        finally:
            mask.end()

    def shutdown(self) -> None:
        self._executor.shutdown(cancel_futures=True)
        self._large_executor.shutdown(cancel_futures=True)


def _start_large_thread() -> None:
    torch.set_num_threads(1)
    if sys.platform == "linux":  # where a thread has a niceness of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
