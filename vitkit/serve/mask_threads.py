"""The threads that make masks of scores: upsampling takes far longer than the model where an image is large.

One thread takes short jobs, in fair turns, so that a photo never waits for a panorama. Large images have threads of
their own, and a turn before they are decoded: what they hold, their windows and scores, is bounded by that.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from vitkit.compute.upsample import OnTile
from vitkit.serve.fair_slots import FairSlots
from vitkit.serve.fair_thread import FairThread

T = TypeVar("T")
LARGE_AT_A_TIME = 2  # images that are cut into windows, or have many scores to upsample


class MaskStopped(Exception):
    """Nobody waits for this mask any more."""


class MaskThreads:
    """The threads of all models of a server. Each computes alone: the cores are the model's and the decoders'."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "vitkit-masks", torch.set_num_threads, (1,))
        self._large_executor = ThreadPoolExecutor(LARGE_AT_A_TIME, "vitkit-large-masks", torch.set_num_threads, (1,))
        self.small = FairThread(self._executor)
        self.large_turns = FairSlots(LARGE_AT_A_TIME)

    async def run_large(self, work: Callable[[OnTile], T]) -> T:
        """Return the result of the work, whose client holds one of `large_turns`.

        The work calls what it is given every now and then, which ends it once its request has ended.
        """
        ended = threading.Event()

        def check() -> None:
            if ended.is_set():
                raise MaskStopped

        try:
            return await asyncio.get_running_loop().run_in_executor(self._large_executor, work, check)
        finally:
            ended.set()

    def shutdown(self) -> None:
        self._executor.shutdown(cancel_futures=True)
        self._large_executor.shutdown(cancel_futures=True)
