"""A number of slots that clients take in fair turns: a bound on how many hold something large at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from vitkit.serve.fair_queue import FairQueue


class FairSlots:
    """A semaphore whose next holder is chosen by client and request; only the event loop's thread uses it."""

    def __init__(self, slots: int):
        self.free = slots
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()

    @asynccontextmanager
    async def hold(self, *, client: Hashable, request: Hashable, cost: float = 1.0) -> AsyncIterator[None]:
        """Wait for a slot, and hold it until the context ends."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = self._queue.push(turn, client=client, request=request, cost=cost)
        self._give_slots()
        try:
            await turn
            yield
        finally:
            if ticket.running:
                self.free += 1
                self._queue.finish(ticket)
            else:  # the request has ended before its turn
                self._queue.remove(ticket)
            self._give_slots()

    def _give_slots(self) -> None:
        while self.free and (ticket := self._queue.pop()) is not None:
            self.free -= 1
            if not ticket.item.done():  # its request may have ended a moment ago, and gives the slot back at once
                ticket.item.set_result(None)
