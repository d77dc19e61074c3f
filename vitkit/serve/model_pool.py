"""The models of a server, with the decode processes, threads, limits and metrics that they share."""

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
from vitkit.predict.segmentation import ImageSegmenter
from vitkit.serve.classifier_worker import ClassifierWorker
from vitkit.serve.decode_pool import DecodePool
from vitkit.serve.fair_thread import FairThread
from vitkit.serve.limits import AdmissionControl, Limits, RequestError
from vitkit.serve.mask_threads import MaskThreads
from vitkit.serve.metrics import Metrics
from vitkit.serve.model_worker import ModelWorker, WorkerResources
from vitkit.serve.segmenter_worker import SegmenterWorker

T = TypeVar("T")
MAX_DECODE_CORES = 8  # a process on each may hold an image of 50 megapixels


def compute_thread_count() -> int:
    """Return how many cores are left for the model on a CPU: decode processes have cores of their own.

    Threads that share cores wait for each other at every layer, and are slower than one (vitkit.devices).
    """
    return max(1, min(torch.get_num_threads(), cores() - decode_core_count(on_cpu=True)))


def decode_core_count(on_cpu: bool) -> int:
    """Return a quarter of the cores for a CPU, where decoding takes a tenth of the model's time, and all for a GPU."""
    return max(1, min(cores() // 4 if on_cpu else cores(), MAX_DECODE_CORES))


def make_compute_executor() -> ThreadPoolExecutor:
    """Return an executor of one thread, which computes for all models.

    torch sets the number of threads per calling thread: this one has the model's.
    """
    return ThreadPoolExecutor(1, "vitkit-compute", torch.set_num_threads, (compute_thread_count(),))


class ModelPool:
    """The workers of all served models; used as a context manager, it ends its threads and processes."""

    def __init__(
        self,
        models: Mapping[str, Classifier | ImageSegmenter],
        limits: Limits | None = None,
        *,
        batch: int | None = None,
        compute_executor: ThreadPoolExecutor | None = None,
    ):
        """batch: images per micro-batch, by default what suits the device; compute_executor: the thread that made the
        models, for engines that must run in the thread that made them."""
        self.limits = limits or Limits()
        self.admission = AdmissionControl(self.limits)
        self.metrics = Metrics(lambda: self.admission.images)
        on_cpu = any(model.device.type == "cpu" for model in models.values())
        # one process more than there are cores for: it decodes small images while the others are busy with large ones
        self.decode_pool = DecodePool(decode_core_count(on_cpu) + 1, self.limits)
        self.thread_executor = ThreadPoolExecutor(1, "vitkit-parse")  # for what would hold up the event loop
        self.parse_thread = FairThread(self.thread_executor)
        self.compute_executor = compute_executor or make_compute_executor()
        self.mask_threads = MaskThreads()
        resources = WorkerResources(
            compute_executor=self.compute_executor,
            decode_pool=self.decode_pool,
            thread_executor=self.thread_executor,
            mask_threads=self.mask_threads,
            limits=self.limits,
            metrics=self.metrics,
        )
        self.workers: dict[str, ModelWorker] = {
            name: SegmenterWorker(name, model, batch, resources)
            if isinstance(model, ImageSegmenter)
            else ClassifierWorker(name, model, batch, resources)
            for name, model in models.items()
        }
        self.default_name = next(iter(self.workers))
        self.warned_of_deprecated_field = False

    def __enter__(self) -> ModelPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Wait for the running tasks of the threads, cancel the queued ones, and end the threads and processes."""
        self.decode_pool.shutdown()
        self.thread_executor.shutdown(cancel_futures=True)
        self.mask_threads.shutdown()
        self.compute_executor.shutdown(cancel_futures=True)

    def warm_up(self) -> None:
        """Start the decode processes, and run every model once."""
        self.decode_pool.start()
        for worker in self.workers.values():
            self.compute_executor.submit(worker.warm_up).result()

    def worker(self, name: str | None) -> ModelWorker:
        if not name:
            return self.workers[self.default_name]
        if name not in self.workers:
            raise RequestError(
                404,
                f"There is no model {name[:80]!r}{did_you_mean(name[:80], self.workers)}",
                f"Use one of {', '.join(self.workers)}.",
            )
        return self.workers[name]

    async def with_timeout(self, work: Awaitable[T], request: Request) -> T:
        """Return the work's result; cancel the work if it takes too long or the client disconnects."""
        task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait((task, disconnect), timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if disconnect.done():
                raise ClientDisconnect
            raise RequestError(
                504, f"The server did not answer within {self.limits.seconds} s.", "Send fewer images, or try later."
            )
        finally:
            task.cancel()
            disconnect.cancel()
            await asyncio.gather(task, disconnect, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
