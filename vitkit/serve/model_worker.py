"""The worker of one model: it has uploaded images decoded and computed in micro-batches; what with, its kind says."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

from vitkit.errors import DecodeError
from vitkit.model.build import Model
from vitkit.model.variants import name_of
from vitkit.serve import schema
from vitkit.serve.batching import MicroBatcher
from vitkit.serve.decode_pool import DecodePool
from vitkit.serve.decode_task import DecodedImage, DecodeTask
from vitkit.serve.limits import Limits
from vitkit.serve.mask_threads import MaskThreads
from vitkit.serve.metrics import Metrics
from vitkit.serve.upload import Upload

T = TypeVar("T")
CPU_BATCH = 16  # Ti/16 on one core, ms per image: 40 at batch 1, 27 at 8 and 16, 33 at 64, which adds latency too
GPU_BATCH = 64
NOT_FINITE = "the model's output for this image is not a finite number"


@dataclass(frozen=True, eq=False)
class Turn:
    """Whose turn it is at the decoders and at the model: a client, and one of its requests."""

    client: str
    request: object


@dataclass(frozen=True, kw_only=True, eq=False)
class WorkerResources:
    """Threads, processes, limits and metrics that the workers of a server share."""

    compute_executor: Executor  # one thread for all models and tasks: threads that share cores slow each other down
    decode_pool: DecodePool
    thread_executor: Executor  # one thread, for what would hold up the event loop
    mask_threads: MaskThreads
    limits: Limits
    metrics: Metrics


class ModelWorker(ABC):
    """A worker of any kind of model: images are decoded in their turn, and computed in micro-batches."""

    def __init__(self, name: str, model: Model, batch: int, decode_task: DecodeTask, resources: WorkerResources):
        self.name, self.model, self.batch, self.decode_task = name, model, batch, decode_task
        self.resources, self.limits, self.metrics = resources, resources.limits, resources.metrics
        self.decode_pool, self.thread_executor = resources.decode_pool, resources.thread_executor

    @abstractmethod
    def warm_up(self) -> None:
        """Run the model once: the first forward pass is slower than all others, and no client should wait for it."""

    @abstractmethod
    def describe(self) -> schema.ModelInfo: ...

    def batcher(
        self, task: str, compute: Callable[[list[Any]], Sequence[Any]], batch: int | None = None
    ) -> MicroBatcher[Any, Any]:
        sizes = self.metrics.batch_sizes.labels(self.name, task)
        executor = self.resources.compute_executor
        return MicroBatcher(compute, batch=batch or self.batch, executor=executor, on_batch=sizes.observe)

    async def each(
        self, compute: Callable[[Upload, Turn], Coroutine[Any, Any, T]], images: list[Upload], client: str
    ) -> list[T]:
        """Compute the images of one request, at most a batch at a time, so that a request of 64 leaves room for others.

        Next to three requests of 64 images, a request of one took 4.9 s without this limit and takes 0.9 s with it.
        """
        request = asyncio.Semaphore(self.batch)

        async def compute_one(image: Upload) -> T:
            async with request:
                return await compute(image, Turn(client, request))

        return await gather([compute_one(image) for image in images])

    async def decode(self, task: DecodeTask, upload: Upload, turn: Turn) -> DecodedImage | str:
        """Return the decoded image, or the reason why it cannot be decoded."""
        try:
            decoded = await self.decode_pool.decode(task, upload, client=turn.client, request=turn.request)
        except DecodeError as error:
            self.metrics.images.labels(self.name, "unreadable").inc()
            return str(error)
        self.metrics.images.labels(self.name, "read").inc()
        return decoded

    @property
    def variant(self) -> str | None:
        return name_of(self.model.config)


async def gather(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order; if one fails or the caller is cancelled, cancel the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
