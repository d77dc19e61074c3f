"""Slots that clients take in fair turns."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.serve.asgi_client import wait_until
from vitkit.serve.fair_slots import FairSlots


class Holders:
    """Tasks that hold a slot until they are let go, in the order in which they got it."""

    def __init__(self, slots: FairSlots):
        self.slots, self.order, self.tasks = slots, list[str](), dict[str, asyncio.Task[None]]()
        self.gates: dict[str, asyncio.Event] = {}

    def start(self, name: str, client: str) -> None:
        self.gates[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name, client))

    async def _hold(self, name: str, client: str) -> None:
        async with self.slots.hold(client=client, request=name):
            self.order.append(name)
            await self.gates[name].wait()

    async def end(self, name: str) -> None:
        self.gates[name].set()
        await self.tasks[name]


def test_a_client_with_many_does_not_keep_another_one_waiting():
    async def scenario() -> list[str]:
        holders = Holders(FairSlots(2))
        for name in "abcd":
            holders.start(name, "many")
        await wait_until(lambda: len(holders.order) == 2)
        holders.start("x", "one")
        for name in "axbcd":
            await wait_until(lambda name=name: name in holders.order)
            await holders.end(name)
        assert holders.slots.free == 2
        return holders.order

    assert asyncio.run(scenario()) == ["a", "b", "x", "c", "d"]


def test_who_gives_up_or_fails_gives_the_slot_back():
    async def scenario() -> None:
        slots = FairSlots(1)
        holders = Holders(slots)
        for name in "abc":
            holders.start(name, name)
        await wait_until(lambda: holders.order == ["a"])
        holders.tasks["b"].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await holders.tasks["b"]
        holders.gates["a"].set()  # "c" gets the slot, and is cancelled in the same moment
        await asyncio.sleep(0)
        holders.tasks["c"].cancel()
        await asyncio.gather(*holders.tasks.values(), return_exceptions=True)
        assert slots.free == 1
        with pytest.raises(KeyError):
            async with slots.hold(client="a", request=0):
                raise KeyError
        assert slots.free == 1

    asyncio.run(scenario())
