"""Fair queueing as a data structure: nobody starves, nothing is lost, and shares are equal within a bound."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.serve.fair_queue import MAX_IDLE_CLIENTS, FairQueue, Ticket

COSTS = st.integers(1, 50)
NAMES = st.sampled_from("abcd")


def flow_key(level: str, flow: Hashable) -> dict[str, Hashable]:
    """Return who pushes: each flow a client of its own, or each a request of the same client."""
    return {"client": flow, "request": 0} if level == "client" else {"client": 0, "request": flow}


@given(jobs=st.lists(st.tuples(NAMES, NAMES, COSTS)), pops=st.lists(st.booleans()))
def test_every_job_is_taken_once_and_those_of_a_request_in_their_order(
    jobs: list[tuple[str, str, int]], pops: list[bool]
):
    queue: FairQueue[int] = FairQueue()
    taken, pushed = [], deque(enumerate(jobs))
    for pop in [*pops, *[False] * len(jobs), *[True] * len(jobs)]:
        if pop:
            waiting = len(queue)
            ticket = queue.pop()
            assert (ticket is None) == (waiting == 0)  # work conserving
            if ticket is not None:
                taken.append(ticket.item)
                queue.finish(ticket)
        elif pushed:
            number, (client, request, cost) = pushed.popleft()
            queue.push(number, client=client, request=request, cost=cost)
    assert sorted(taken) == list(range(len(jobs)))
    by_request = defaultdict(list)
    for number in taken:
        by_request[jobs[number][:2]].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_request.values())
    assert len(queue) == 0


@pytest.mark.parametrize("level", ["client", "request"])
@given(costs=st.lists(st.lists(COSTS, min_size=1, max_size=12), min_size=2, max_size=5))
def test_two_that_both_wait_get_equal_work_up_to_a_job_of_each(level: str, costs: list[list[int]]):
    """Over any time in which both wait, their work differs by a largest job of each: the bound of fair queueing."""
    queue: FairQueue[int] = FairQueue()
    for flow, jobs in enumerate(costs):
        for cost in jobs:
            queue.push(flow, cost=cost, **flow_key(level, flow))
    left, work = Counter({flow: len(jobs) for flow, jobs in enumerate(costs)}), Counter[int]()
    differences = {(a, b): [0] for a in left for b in left if a < b}
    while (ticket := queue.pop()) is not None:
        for pair, seen in differences.items():
            if left[pair[0]] and left[pair[1]]:
                seen.append(work[pair[0]] - work[pair[1]])
        left[ticket.item] -= 1
        work[ticket.item] += ticket.cost
        queue.finish(ticket)
    for (a, b), seen in differences.items():
        assert max(seen) - min(seen) <= max(costs[a]) + max(costs[b])


@pytest.mark.parametrize("level", ["client", "request"])
@given(others=st.integers(1, 9), taken=st.integers(0, 60), cost=st.integers(1, 100))
def test_a_newcomer_with_a_small_job_is_next_whatever_the_others_have_queued(
    level: str, others: int, taken: int, cost: int
):
    queue: FairQueue[str] = FairQueue()
    for other in range(others):
        for _ in range(math.ceil((taken + 1) / others) + 1):
            queue.push("large", cost=cost, **flow_key(level, other))
    for _ in range(taken):
        ticket = queue.pop()
        assert ticket is not None
        queue.finish(ticket)
    queue.push("small", cost=cost / others / 2, **flow_key(level, "new"))
    ticket = queue.pop()
    assert ticket is not None
    assert ticket.item == "small"


@pytest.mark.parametrize("level", ["client", "request"])
@given(cost=st.integers(1, 200), small=st.integers(1, 5))
def test_a_large_job_is_taken_however_many_newcomers_have_small_ones(level: str, cost: int, small: int):
    queue: FairQueue[str] = FairQueue()
    queue.push("large", cost=cost, **flow_key(level, "first"))
    for number in range(10**6):
        queue.push("small", cost=small, **flow_key(level, number))
        ticket = queue.pop()
        assert ticket is not None
        queue.finish(ticket)
        if ticket.item == "large":
            break
    assert number * small <= 2 * cost  # two share: while one waits, the others get twice its cost at most


@given(real=st.integers(2, 100))
def test_a_client_whose_jobs_cost_more_than_they_seemed_waits_until_others_have_had_as_much(real: int):
    queue: FairQueue[str] = FairQueue()
    for _ in range(2 * real):
        queue.push("honest", client="honest", request=0, cost=1)
    for _ in range(3):
        queue.push("liar", client="liar", request=0, cost=1)
    order = []
    while (ticket := queue.pop()) is not None:
        order.append(ticket.item)
        queue.finish(ticket, real if ticket.item == "liar" else 1)
    first, second, _ = (index for index, item in enumerate(order) if item == "liar")
    assert second - first >= real - 1


def test_a_client_with_one_request_shares_with_a_client_with_many():
    queue: FairQueue[str] = FairQueue()
    for request in range(100):
        queue.push("many", client="many", request=request)
    for _ in range(10):
        queue.push("one", client="one", request=0)
    assert [ticket.item for _ in range(20) if (ticket := finish_next(queue))].count("one") == 10


def test_time_without_jobs_is_not_saved_up():
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.push("busy", client="busy", request=0)
    for _ in range(50):
        finish_next(queue)
    for _ in range(50):
        queue.push("idle until now", client="idle", request=0)
    items = [finish_next(queue).item for _ in range(20)]
    assert abs(items.count("busy") - 10) <= 1


@given(jobs=st.lists(st.tuples(NAMES, NAMES), min_size=1), data=st.data())
@settings(max_examples=30)
def test_jobs_that_are_removed_are_not_taken(jobs: list[tuple[str, str]], data: st.DataObject):
    queue: FairQueue[int] = FairQueue()
    tickets = [queue.push(n, client=client, request=request) for n, (client, request) in enumerate(jobs)]
    removed = data.draw(st.sets(st.sampled_from(range(len(jobs)))))
    for number in removed:
        queue.remove(tickets[number])
    taken = {finish_next(queue).item for _ in range(len(jobs) - len(removed))}
    assert taken == set(range(len(jobs))) - removed
    assert queue.pop() is None


def test_jobs_that_may_not_start_are_passed_over_and_clients_behind_come_last():
    queue: FairQueue[str] = FairQueue()
    queue.push("long", client="a", request=0, cost=1)
    queue.push("short", client="b", request=0, cost=9)
    queue.push("other", client="c", request=0, cost=20)
    assert take(queue, eligible=lambda ticket: ticket.item != "long", behind=lambda client: client == "b") == "other"
    assert take(queue, eligible=lambda ticket: ticket.item != "long", behind=lambda client: client == "b") == "short"
    assert take(queue, eligible=lambda ticket: False) is None
    assert take(queue) == "long"


def test_a_job_must_cost_something():
    for cost in (0, -1, math.nan):
        with pytest.raises(ValueError, match="cost"):
            FairQueue[int]().push(1, client=0, request=0, cost=cost)


def test_clients_who_wait_for_nothing_are_forgotten():
    queue: FairQueue[int] = FairQueue()
    queue.push(0, client="always", request=0, cost=10**9)
    for client in range(3 * MAX_IDLE_CLIENTS):
        ticket = queue.push(1, client=client, request=0, cost=1)
        assert queue.pop() is ticket
        queue.finish(ticket, 1000)  # they owe
    assert len(queue._clients) <= MAX_IDLE_CLIENTS + 2
    finish_next(queue)
    assert queue._clients == {}


def take(queue: FairQueue[str], **options: Callable[..., bool]) -> str | None:
    ticket = queue.pop(**options)
    return None if ticket is None else ticket.item


def finish_next(queue: FairQueue[Any]) -> Ticket[Any]:
    ticket = queue.pop()
    assert ticket is not None
    queue.finish(ticket)
    return ticket
