"""The micro-batcher alone: which items share a batch, in which order, and what happens to cancelled ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serve.asgi_client import wait_until
from tests.serve.servers import TIMEOUT
from vitkit.serve.batching import EngineError, MicroBatcher


class DoublingEngine:
    """An engine that doubles numbers once its gate is open, and collects the batches."""

    def __init__(self, gate_open: bool = True):
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        if gate_open:
            self.gate.set()

    def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(list(items))
        assert self.gate.wait(TIMEOUT)
        if 13 in items:
            raise ArithmeticError("thirteen")
        return [2 * item for item in items]


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def queued(batcher: MicroBatcher[int, int]) -> int:
    return len(batcher._queue)


def test_a_single_item_is_computed_at_once_and_items_that_arrive_meanwhile_share_a_batch(executor: ThreadPoolExecutor):
    engine = DoublingEngine(gate_open=False)

    async def scenario() -> list[int]:
        batcher = MicroBatcher(engine, batch=64, executor=executor)
        first = asyncio.create_task(batcher.submit(0))
        await wait_until(lambda: bool(engine.batches))
        others = [asyncio.create_task(batcher.submit(number)) for number in range(1, 10)]
        await wait_until(lambda: queued(batcher) == 9)
        engine.gate.set()
        return await asyncio.gather(first, *others)

    assert asyncio.run(scenario()) == [2 * number for number in range(10)]
    assert engine.batches == [[0], list(range(1, 10))]


def test_a_batch_is_never_larger_than_the_limit_and_items_keep_their_order(executor: ThreadPoolExecutor):
    engine = DoublingEngine()

    async def scenario() -> list[int]:
        batcher = MicroBatcher(engine, batch=4, executor=executor)
        return await asyncio.gather(*(batcher.submit(number) for number in range(10)))

    assert asyncio.run(scenario()) == [2 * number for number in range(10)]
    assert engine.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_one_item_does_not_wait_for_all_items_of_another_request(executor: ThreadPoolExecutor):
    engine = DoublingEngine()

    async def scenario() -> list[int]:
        batcher = MicroBatcher(engine, batch=3, executor=executor)
        return await asyncio.gather(
            *(batcher.submit(number, "many") for number in range(8)),
            batcher.submit(50, "one"),
            batcher.submit(60, "two"),
            batcher.submit(61, "two"),
        )

    assert asyncio.run(scenario()) == [2 * number for number in (*range(8), 50, 60, 61)]
    assert engine.batches == [[0, 50, 60], [1, 61, 2], [3, 4, 5], [6, 7]]


def test_an_item_cancelled_in_the_queue_is_not_computed(executor: ThreadPoolExecutor):
    engine = DoublingEngine(gate_open=False)

    async def scenario() -> list[int]:
        batcher = MicroBatcher(engine, batch=64, executor=executor)
        first = asyncio.create_task(batcher.submit(0))
        await wait_until(lambda: bool(engine.batches))
        others = [asyncio.create_task(batcher.submit(number)) for number in range(1, 6)]
        await wait_until(lambda: queued(batcher) == 5)
        others[1].cancel()
        others[3].cancel()
        await asyncio.sleep(0)
        engine.gate.set()
        return await asyncio.gather(first, others[0], others[2], others[4])

    assert asyncio.run(scenario()) == [0, 2, 6, 10]
    assert engine.batches == [[0], [1, 3, 5]]


def test_an_item_cancelled_during_its_batch_does_not_affect_the_others(executor: ThreadPoolExecutor):
    engine = DoublingEngine(gate_open=False)

    async def scenario() -> list[int]:
        batcher = MicroBatcher(engine, batch=64, executor=executor)
        tasks = [asyncio.create_task(batcher.submit(number)) for number in range(3)]
        await wait_until(lambda: bool(engine.batches))
        tasks[1].cancel()
        await asyncio.sleep(0)
        engine.gate.set()
        return await asyncio.gather(tasks[0], tasks[2])

    assert asyncio.run(scenario()) == [0, 4]


def test_an_engine_failure_fails_its_batch_and_not_the_next_one(executor: ThreadPoolExecutor):
    engine = DoublingEngine()

    async def scenario() -> list[int | BaseException]:
        batcher = MicroBatcher(engine, batch=2, executor=executor)
        return await asyncio.gather(*(batcher.submit(number) for number in (1, 13, 2, 3)), return_exceptions=True)

    results = asyncio.run(scenario())
    assert results[2:] == [4, 6]
    assert all(isinstance(error, EngineError) and "thirteen" in str(error) for error in results[:2])
    assert results[0] is not results[1]  # each request raises its own


def test_an_engine_that_loses_a_result_raises_instead_of_shifting_the_others(executor: ThreadPoolExecutor):
    async def scenario() -> list[int | BaseException]:
        batcher: MicroBatcher[int, int] = MicroBatcher(lambda items: items[1:], batch=4, executor=executor)
        return await asyncio.gather(*(batcher.submit(number) for number in range(4)), return_exceptions=True)

    assert all(isinstance(error, EngineError) for error in asyncio.run(scenario()))


def test_an_idle_batcher_has_no_task_and_batch_sizes_are_reported(executor: ThreadPoolExecutor):
    sizes: list[int] = []

    async def scenario() -> bool:
        batcher = MicroBatcher(DoublingEngine(), batch=3, executor=executor, on_batch=sizes.append)
        await asyncio.gather(*(batcher.submit(number) for number in range(7)))
        await wait_until(lambda: len(asyncio.all_tasks()) == 1)
        return batcher._worker is None

    assert asyncio.run(scenario())
    assert sizes == [3, 3, 1]


def test_stopping_the_worker_cancels_all_items(executor: ThreadPoolExecutor):
    engine = DoublingEngine(gate_open=False)

    async def scenario() -> list[int | BaseException]:
        batcher = MicroBatcher(engine, batch=1, executor=executor)
        tasks = [asyncio.create_task(batcher.submit(number)) for number in range(3)]
        await wait_until(lambda: bool(engine.batches))
        assert batcher._worker is not None
        batcher._worker.cancel()
        try:
            return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), TIMEOUT)
        finally:
            engine.gate.set()

    assert all(isinstance(error, asyncio.CancelledError) for error in asyncio.run(scenario()))
