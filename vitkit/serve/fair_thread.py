"""One thread for work that would hold up the event loop, in fair turns: a small body passes large ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from typing import Any, TypeVar

from vitkit.serve.fair_queue import FairQueue, Ticket

Result = TypeVar("Result")


class FairThread:
    """Runs functions one at a time in an executor; only the event loop's thread calls it.

    The executor's own queue is first come, first served: next to eight clients who send 30 MB of JSON each, a photo
    would wait until all of that is parsed.
    """

    def __init__(self, executor: Executor):
        self.executor = executor
        self._queue: FairQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = FairQueue()
        self._busy = False

    async def run(self, work: Callable[[], Result], *, client: Hashable, cost: float) -> Result:
        """Return the result of the work in its turn; work that is cancelled before it begins is not done."""
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        ticket = self._queue.push((work, result), client=client, request=result, cost=cost)
        self._start()
        try:
            return await result
        finally:
            if not ticket.running:
                self._queue.remove(ticket)

    def _start(self) -> None:
        if self._busy or (ticket := self._queue.pop()) is None:
            return
        self._busy = True
        running = asyncio.get_running_loop().run_in_executor(self.executor, ticket.item[0])
        running.add_done_callback(lambda done: self._finish(ticket, done))

    def _finish(self, ticket: Ticket[tuple[Callable[[], Any], asyncio.Future[Any]]], done: asyncio.Future[Any]) -> None:
        self._busy = False
        self._queue.finish(ticket)
        _, result = ticket.item
        if done.cancelled():
            result.cancel()
        elif (error := done.exception()) is not None:  # asked for even where nobody waits: else asyncio logs it
            if not result.done():
                result.set_exception(error)
        elif not result.done():
            result.set_result(done.result())
        self._start()
