"""Micro-batching: items that arrive while the engine is busy are computed together as soon as it is free.

Nothing waits for a batch to fill: an idle server computes a single image at once, and batches grow only with the load.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

from vitkit.serve.fair_queue import FairQueue

Item = TypeVar("Item")
Result = TypeVar("Result")


class MicroBatcher(Generic[Item, Result]):
    """A queue for an event loop, whose worker calls `compute` in the executor's thread, one batch at a time.

    Clients take turns, and requests of a client, so that one with many items does not keep one with a single item
    waiting; the items of one request are computed in their order.

    compute   several items → as many results, in the same order
    on_batch  called with the size of each batch
    """

    def __init__(
        self,
        compute: Callable[[list[Item]], Sequence[Result]],
        *,
        batch: int,
        executor: Executor,
        on_batch: Callable[[int], None] = lambda size: None,
    ):
        self.compute, self.batch, self.executor, self.on_batch = compute, batch, executor, on_batch
        self._queue: FairQueue[tuple[Item, asyncio.Future[Result]]] = FairQueue()
        self._worker: asyncio.Task[None] | None = None

    async def submit(self, item: Item, request: Hashable = None, client: Hashable = None) -> Result:
        """Queue the item and return its result; an item cancelled in the queue is not computed."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.push((item, future), client=client, request=request)
        if self._worker is None:  # the task lives only while there is work: an idle batcher has none
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        try:
            while batch := self._next_batch():
                self.on_batch(len(batch))
                await self._compute(batch)
        finally:
            self._worker = None
            for _, future in self._queue:  # only if the loop itself is being stopped
                future.cancel()

    def _next_batch(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        while len(batch) < self.batch and (ticket := self._queue.pop()) is not None:
            item, future = ticket.item
            self._queue.finish(ticket, 0.0 if future.done() else None)
            if not future.done():
                batch.append((item, future))
        return batch

    async def _compute(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self.executor, self.compute, [item for item, _ in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"the engine returned {len(results)} results for {len(batch)} images")
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(EngineError(error))
                    future.exception()  # marks it as retrieved: the request may be gone by now
            return
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)


class EngineError(RuntimeError):
    """A failure of the engine; every request of the batch gets its own, because tracebacks grow as they are raised."""

    def __init__(self, cause: Exception):
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.__cause__ = cause
