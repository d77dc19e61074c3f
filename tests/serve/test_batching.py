"""The batcher alone: who gets what, in which company, and what happens to those who leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from vitkit.serve.batching import Batcher, EngineError


class Engine:
    """Doubles numbers, when it is let; remembers the batches."""

    def __init__(self, free: bool = True):
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        if free:
            self.gate.set()

    def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(list(items))
        assert self.gate.wait(10)
        if 13 in items:
            raise ArithmeticError("thirteen")
        return [2 * item for item in items]


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_lone_item_is_computed_at_once_and_what_comes_meanwhile_goes_together(executor: ThreadPoolExecutor):
    engine = Engine(free=False)

    async def scene() -> list[int]:
        batcher = Batcher(engine, batch=64, executor=executor)
        first = asyncio.create_task(batcher.ask(0))
        await until(lambda: bool(engine.batches))
        others = [asyncio.create_task(batcher.ask(number)) for number in range(1, 10)]
        await asyncio.sleep(0.02)
        engine.gate.set()
        return await asyncio.gather(first, *others)

    assert asyncio.run(scene()) == [2 * number for number in range(10)]
    assert engine.batches == [[0], list(range(1, 10))]


def test_a_batch_is_never_larger_than_said_and_the_first_to_come_is_the_first_served(executor: ThreadPoolExecutor):
    engine = Engine()

    async def scene() -> list[int]:
        batcher = Batcher(engine, batch=4, executor=executor)
        return await asyncio.gather(*(batcher.ask(number) for number in range(10)))

    assert asyncio.run(scene()) == [2 * number for number in range(10)]
    assert engine.batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_one_item_does_not_wait_for_all_items_of_another_asker(executor: ThreadPoolExecutor):
    engine = Engine()

    async def scene() -> list[int]:
        batcher = Batcher(engine, batch=3, executor=executor)
        return await asyncio.gather(
            *(batcher.ask(number, "many") for number in range(8)),
            batcher.ask(50, "one"),
            batcher.ask(60, "two"),
            batcher.ask(61, "two"),
        )

    assert asyncio.run(scene()) == [2 * number for number in (*range(8), 50, 60, 61)]
    assert engine.batches == [[0, 50, 60], [1, 61, 2], [3, 4, 5], [6, 7]]


def test_who_leaves_while_waiting_is_not_computed_for(executor: ThreadPoolExecutor):
    engine = Engine(free=False)

    async def scene() -> list[int]:
        batcher = Batcher(engine, batch=64, executor=executor)
        first = asyncio.create_task(batcher.ask(0))
        await until(lambda: bool(engine.batches))
        others = [asyncio.create_task(batcher.ask(number)) for number in range(1, 6)]
        await asyncio.sleep(0.02)
        others[1].cancel()
        others[3].cancel()
        await asyncio.sleep(0)
        engine.gate.set()
        return await asyncio.gather(first, others[0], others[2], others[4])

    assert asyncio.run(scene()) == [0, 2, 6, 10]
    assert engine.batches == [[0], [1, 3, 5]]


def test_who_leaves_while_being_computed_for_takes_nothing_from_the_others(executor: ThreadPoolExecutor):
    engine = Engine(free=False)

    async def scene() -> list[int]:
        batcher = Batcher(engine, batch=64, executor=executor)
        tasks = [asyncio.create_task(batcher.ask(number)) for number in range(3)]
        await until(lambda: bool(engine.batches))
        tasks[1].cancel()
        await asyncio.sleep(0)
        engine.gate.set()
        return await asyncio.gather(tasks[0], tasks[2])

    assert asyncio.run(scene()) == [0, 4]


def test_an_engine_that_fails_fails_its_batch_and_lives_on(executor: ThreadPoolExecutor):
    engine = Engine()

    async def scene() -> list[int | BaseException]:
        batcher = Batcher(engine, batch=2, executor=executor)
        return await asyncio.gather(*(batcher.ask(number) for number in (1, 13, 2, 3)), return_exceptions=True)

    told = asyncio.run(scene())
    assert told[2:] == [4, 6]
    assert all(isinstance(error, EngineError) and "thirteen" in str(error) for error in told[:2])
    assert told[0] is not told[1]  # each request raises its own


def test_an_engine_that_loses_an_answer_is_an_error_and_not_a_shift(executor: ThreadPoolExecutor):
    async def scene() -> list[int | BaseException]:
        batcher: Batcher[int, int] = Batcher(lambda items: items[1:], batch=4, executor=executor)
        return await asyncio.gather(*(batcher.ask(number) for number in range(4)), return_exceptions=True)

    assert all(isinstance(error, EngineError) for error in asyncio.run(scene()))


def test_an_idle_batcher_is_no_task_and_sizes_are_told(executor: ThreadPoolExecutor):
    sizes: list[int] = []

    async def scene() -> int:
        batcher = Batcher(Engine(), batch=3, executor=executor, watch=sizes.append)
        await asyncio.gather(*(batcher.ask(number) for number in range(7)))
        await asyncio.sleep(0.01)
        return len(asyncio.all_tasks())

    assert asyncio.run(scene()) == 1  # the scene itself
    assert sizes == [3, 3, 1]


def test_a_stopped_loop_leaves_nobody_waiting(executor: ThreadPoolExecutor):
    engine = Engine(free=False)

    async def scene() -> list[int | BaseException]:
        batcher = Batcher(engine, batch=1, executor=executor)
        tasks = [asyncio.create_task(batcher.ask(number)) for number in range(3)]
        await until(lambda: bool(engine.batches))
        assert batcher._runner is not None
        batcher._runner.cancel()
        try:
            return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        finally:
            engine.gate.set()

    assert all(isinstance(error, asyncio.CancelledError) for error in asyncio.run(scene()))
