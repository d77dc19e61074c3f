"""What a server holds while it runs: the models, the threads that read and compute, the counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

import torch
from starlette.requests import ClientDisconnect, Request

from vitkit.devices import cores
from vitkit.errors import did_you_mean
from vitkit.predict.classifier import Classifier
from vitkit.serve.limits import Admission, Limits, Refusal
from vitkit.serve.metrics import Meters
from vitkit.serve.model_worker import Served

T = TypeVar("T")
MOST_READERS = 8  # each may hold a picture of 50 megapixels


def pick_threads() -> int:
    """For computing on the CPU: the readers have cores of their own. Threads that share theirs wait for each other at
    every layer, and are slower than one (vitkit.devices)."""
    return max(1, min(torch.get_num_threads(), cores() - pick_readers(on_cpu=True)))


def pick_readers(on_cpu: bool) -> int:
    """A picture is read in a tenth of the time that a CPU computes on it; a GPU is fed by all cores."""
    return max(1, min(cores() // 4 if on_cpu else cores(), MOST_READERS))


def one_thread() -> ThreadPoolExecutor:
    """Which computes for all models. torch counts threads by the thread that asks: these are the model's, and resizing,
    in the readers' threads, has one."""
    return ThreadPoolExecutor(1, "vitkit-compute", torch.set_num_threads, (pick_threads(),))


class Service:
    """As a context: its threads end with it."""

    def __init__(
        self,
        classifiers: Mapping[str, Classifier],
        limits: Limits | None = None,
        *,
        batch: int | None = None,
        computer: ThreadPoolExecutor | None = None,
    ):
        """batch: pictures together, what suits the device unless said; computer: the thread that made the classifiers,
        for engines that want to be used where they were made."""
        self.limits = limits or Limits()
        self.admission = Admission(self.limits)
        self.meters = Meters(lambda: self.admission.pictures)
        on_cpu = any(classifier.device.type == "cpu" for classifier in classifiers.values())
        self.readers = ThreadPoolExecutor(pick_readers(on_cpu), "vitkit-read", torch.set_num_threads, (1,))
        self.computer = computer or one_thread()
        self.models = {
            name: Served(
                name,
                classifier,
                batch=batch,
                computer=self.computer,
                readers=self.readers,
                limits=self.limits,
                meters=self.meters,
            )
            for name, classifier in classifiers.items()
        }
        self.default = next(iter(self.models))

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Waits for what its threads are at."""
        self.readers.shutdown(cancel_futures=True)
        self.computer.shutdown(cancel_futures=True)

    def warm(self) -> None:
        for served in self.models.values():
            self.computer.submit(served.warm).result()

    def model(self, name: str | None) -> Served:
        if not name:
            return self.models[self.default]
        if name not in self.models:
            raise Refusal(
                404,
                f"There is no model {name[:80]!r}{did_you_mean(name[:80], self.models)}",
                f"one of {', '.join(self.models)}",
            )
        return self.models[name]

    async def within_limits(self, work: Awaitable[T], request: Request) -> T:
        """The work's result, unless it takes too long or the client goes away: then it is called off."""
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait((task, gone), timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if gone.done():
                raise ClientDisconnect
            raise Refusal(504, f"No answer within {self.limits.seconds} s.", "fewer pictures, or later")
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
