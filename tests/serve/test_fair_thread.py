"""The thread that parses bodies: small ones pass large ones, and whatever happens to one, the next is parsed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest

from tests.serve.servers import TIMEOUT
from vitkit.serve.fair_thread import FairThread


@contextmanager
def thread_that_waits() -> Iterator[tuple[FairThread, threading.Event]]:
    """Yield a thread, and an event which the work named "first" waits for."""
    with ThreadPoolExecutor(1) as executor:
        may_go = threading.Event()
        try:
            yield FairThread(executor), may_go
        finally:
            may_go.set()


def test_a_small_body_passes_the_large_ones_of_others_who_came_before():
    order: list[str] = []

    async def scenario(thread: FairThread, may_go: threading.Event) -> None:
        def work(name: str) -> str:
            if name == "first":
                may_go.wait(TIMEOUT)
            order.append(name)
            return name

        run = partial(_submit, thread, work)
        first = run("first", "a", 30_000_000)
        await asyncio.sleep(0)  # it begins
        large = [run(f"large {client}", client, 30_000_000) for client in "abcdefgh"]
        small = run("small", "i", 500_000)
        await asyncio.sleep(0)
        may_go.set()
        assert await small == "small"
        assert await asyncio.gather(first, *large) == ["first", *(f"large {client}" for client in "abcdefgh")]

    with thread_that_waits() as (thread, may_go):
        asyncio.run(asyncio.wait_for(scenario(thread, may_go), TIMEOUT))
    assert order[:2] == ["first", "small"]
    assert sorted(order[2:]) == [f"large {client}" for client in "abcdefgh"]


def _submit(thread: FairThread, work: Callable[[str], str], name: str, client: str, cost: float) -> asyncio.Task[str]:
    return asyncio.create_task(thread.run(partial(work, name), client=client, cost=cost))


def test_errors_and_cancellations_concern_their_own_work_only():
    done: list[str] = []

    async def scenario(thread: FairThread, may_go: threading.Event) -> None:
        def work(name: str) -> str:
            if name == "first":
                may_go.wait(TIMEOUT)
            if name == "bad":
                raise KeyError("bad")
            done.append(name)
            return name

        tasks = {name: _submit(thread, work, name, name, 1.0) for name in ("first", "bad", "given up", "good")}
        await asyncio.sleep(0)
        tasks["given up"].cancel()
        tasks["first"].cancel()  # in progress: it cannot be stopped, and nobody waits for it
        await asyncio.sleep(0)
        may_go.set()
        with pytest.raises(KeyError, match="bad"):
            await tasks["bad"]
        assert await tasks["good"] == "good"
        assert await thread.run(lambda: "later", client="z", cost=1.0) == "later"

    with thread_that_waits() as (thread, may_go):
        asyncio.run(asyncio.wait_for(scenario(thread, may_go), TIMEOUT))
    assert done == ["first", "good"]
