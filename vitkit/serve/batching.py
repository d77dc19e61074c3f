"""Micro-batching: what waits while the engine is busy is computed together as soon as it is free.

Nothing waits for company: on an idle server a lone picture is computed at once, and batches grow only with the load.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import chain
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Awaited from an event loop; `compute` runs in the executor's thread, a batch at a time.

    Askers take turns, so that one with many items does not keep one with a single item waiting; the items of one asker
    are served in their order.

    compute  several items → as many results, in the same order
    watch    is told the size of each batch
    """

    def __init__(
        self,
        compute: Callable[[list[Item]], Sequence[Result]],
        *,
        batch: int,
        executor: Executor,
        watch: Callable[[int], None] = lambda size: None,
    ):
        self.compute, self.batch, self.executor, self.watch = compute, batch, executor, watch
        self._waiting: dict[object, deque[tuple[Item, asyncio.Future[Result]]]] = {}  # by asker, the next first
        self._runner: asyncio.Task[None] | None = None

    async def ask(self, item: Item, asker: object = None) -> Result:
        """The item's own result. Who is cancelled while waiting is dropped before anything is computed for him."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asker, deque()).append((item, future))
        if self._runner is None:  # it lives only while there is work, so an idle batcher is no task at all
            self._runner = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while chosen := self._next():
                self.watch(len(chosen))
                await self._answer(chosen)
        finally:
            self._runner = None
            for _, future in chain.from_iterable(self._waiting.values()):  # only where the loop itself is being stopped
                future.cancel()

    def _next(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        chosen: list[tuple[Item, asyncio.Future[Result]]] = []
        while self._waiting and len(chosen) < self.batch:
            asker, items = next(iter(self._waiting.items()))
            item, future = items.popleft()
            del self._waiting[asker]
            if items:
                self._waiting[asker] = items  # at the end of the line
            if not future.done():
                chosen.append((item, future))
        return chosen

    async def _answer(self, chosen: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self.executor, self.compute, [item for item, _ in chosen])
            if len(results) != len(chosen):
                raise RuntimeError(f"{len(results)} results for {len(chosen)} pictures")
        except Exception as error:
            for _, future in chosen:
                if not future.done():
                    future.set_exception(EngineError(error))
                    future.exception()  # looked at: who asked may be gone by the time it arrives
            return
        except asyncio.CancelledError:
            for _, future in chosen:
                future.cancel()
            raise
        for (_, future), result in zip(chosen, results, strict=True):
            if not future.done():
                future.set_result(result)


class EngineError(RuntimeError):
    """What the engine raised; every request of the batch has one of its own, for tracebacks grow as they travel."""

    def __init__(self, cause: Exception):
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.__cause__ = cause
