"""Guessed keys: a wrong one costs its client time, a right one always passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.servers import exchange, make_pool, running_server
from vitkit.serve import key_throttle
from vitkit.serve.key_throttle import FREE_GUESSES, MAX_CLIENTS, KeyThrottle

KEY = "the-right-key"
GUESSER, OTHER = "127.0.0.2", "127.0.0.3"


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(key_throttle, "DELAY", 0.01)
    with make_pool() as pool, running_server(pool, key=KEY) as (address, _, _):
        yield address


def status(address: str, key: str | None, source: str, path: str = "/v1/models") -> int:
    return int(send_key(address, key, source, path).split()[1])


def send_key(address: str, key: str | None, source: str, path: str = "/v1/models") -> bytes:
    header = "" if key is None else f"authorization: Bearer {key}\r\n"
    request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{header}connection: close\r\n\r\n"
    return exchange(address, request.encode(), source)


def test_wrong_keys_are_refused_with_429_after_a_few_and_the_right_one_passes_from_any_address(address: str):
    codes = [status(address, f"wrong-{index}", GUESSER) for index in range(FREE_GUESSES + 3)]
    assert codes == [401] * FREE_GUESSES + [429] * 3
    head = send_key(address, "wrong-again", GUESSER).lower()
    (retry_after,) = (line for line in head.split(b"\r\n") if line.startswith(b"retry-after: "))
    assert 1 <= int(retry_after.split()[1]) <= 60
    assert status(address, "wrong", GUESSER, "/metrics") == 429
    assert status(address, KEY, GUESSER) == 200  # someone else behind the same proxy
    assert status(address, KEY, OTHER) == 200
    assert status(address, "wrong", OTHER) == 401  # others start afresh
    assert status(address, None, GUESSER, "/healthz") == 200


def test_requests_without_a_key_are_no_guesses(address: str):
    """The web page asks without one, to learn whether a key is needed."""
    assert {status(address, None, GUESSER) for _ in range(2 * FREE_GUESSES)} == {401}
    assert status(address, "wrong", GUESSER) == 401


def test_the_answer_to_a_wrong_key_is_delayed_but_not_for_more_than_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch):
    import asyncio

    async def waiting_answers(count: int) -> int:
        throttle = KeyThrottle()
        throttle.count_wrong_key("a")
        tasks = [asyncio.create_task(throttle.delay("a")) for _ in range(count)]
        for _ in range(3):
            await asyncio.sleep(0)
        waiting = sum(not task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert throttle.clients["a"].delayed == 0
        return waiting

    monkeypatch.setattr(key_throttle, "DELAY", 3600)
    assert asyncio.run(waiting_answers(5)) == 5
    assert asyncio.run(waiting_answers(500)) == key_throttle.MAX_DELAYED


def test_wrong_keys_are_forgotten_with_time():
    now = 0.0
    throttle = KeyThrottle(lambda: now)
    assert [throttle.count_wrong_key("a") for _ in range(FREE_GUESSES + 1)] == [0] * FREE_GUESSES + [10]
    waits = [throttle.count_wrong_key("a") for _ in range(100)]
    assert max(waits) == waits[-1] == 60  # nobody waits for longer than a minute
    now += 60
    assert throttle.count_wrong_key("a") > 0  # one more, at the limit
    now += 3600
    assert throttle.count_wrong_key("a") == 0


def test_the_table_of_clients_is_bounded_and_forgets_the_oldest_first():
    throttle = KeyThrottle(lambda: 0.0)
    for _ in range(FREE_GUESSES + 1):
        throttle.count_wrong_key("attacker")
    for index in range(3 * MAX_CLIENTS):
        throttle.count_wrong_key(f"client {index}")
        if index % 100 == 0:
            assert throttle.count_wrong_key("attacker") > 0
    assert len(throttle.clients) == MAX_CLIENTS


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 30)), max_size=60))
def test_the_guesses_of_one_client_never_change_what_another_gets(events: list[tuple[str, float]]):
    now = 0.0
    shared, separate = KeyThrottle(lambda: now), {client: KeyThrottle(lambda: now) for client in "ab"}
    for client, seconds in events:
        now += seconds
        assert shared.count_wrong_key(client) == separate[client].count_wrong_key(client)
