"""Connections per client: one that opens hundreds leaves room for the others."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.servers import PATIENT, connect, exchange, make_pool, read_all, running_server, wait_for
from vitkit.serve.connections import ConnectionLimiter

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def test_a_client_with_more_slow_connections_than_the_server_takes_leaves_room_for_another():
    limits = replace(PATIENT, connections=40)
    with (
        make_pool(limits) as pool,
        running_server(pool) as (address, _, server),
        contextlib.ExitStack() as stack,
    ):
        slow = [stack.enter_context(connect(address, "127.0.0.2")) for _ in range(60)]
        for connection in slow:
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /")
        wait_for(lambda: len(server.server_state.connections) == 20)  # half of 40
        refused = [read_all(connection) for connection in slow[20:]]
        assert all(response.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in response for response in refused)
        answers = [exchange(address, HEALTH, "127.0.0.3") for _ in range(7)]
        assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
        stack.close()
        wait_for(lambda: not server.server_state.connections)
        assert exchange(address, HEALTH, "127.0.0.2").startswith(b"HTTP/1.1 200 ")  # and the first is welcome again


def test_the_limit_of_connections_per_client_can_be_set():
    limits = replace(PATIENT, client_connections=2)
    with make_pool(limits) as pool, running_server(pool) as (address, _, server), contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(connect(address, "127.0.0.2"))
        wait_for(lambda: len(server.server_state.connections) == 2)
        assert exchange(address, HEALTH, "127.0.0.2").startswith(b"HTTP/1.1 503 ")
        assert exchange(address, HEALTH, "127.0.0.3").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("total", [1, 2, 3, 512])
def test_the_first_connection_is_always_accepted(total: int):
    assert ConnectionLimiter(total=total, per_client=total).admit("a")


@given(
    total=st.integers(1, 12),
    per_client=st.integers(1, 12),
    events=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=80),
)
def test_no_client_ever_takes_the_last_connection_but_as_its_first(
    total: int, per_client: int, events: list[tuple[str, bool]]
):
    limiter, held = ConnectionLimiter(total=total, per_client=per_client), {"a": 0, "b": 0, "c": 0}
    for client, opens in events:
        free = total - sum(held.values())
        if opens:
            admitted = limiter.admit(client)
            assert admitted == (held[client] < per_client and held[client] < free)
            held[client] += admitted
        elif held[client]:
            limiter.release(client)
            held[client] -= 1
        assert sum(held.values()) <= total
    assert limiter.by_client == {client: count for client, count in held.items() if count}  # nothing is kept of others


def test_a_refused_client_reads_the_reason_although_it_was_still_sending():
    with make_pool(replace(PATIENT, client_connections=1)) as pool, running_server(pool) as (address, _, server):
        with connect(address, "127.0.0.2"):
            wait_for(lambda: server.server_state.connections)
            with connect(address, "127.0.0.2") as refused:
                assert refused.recv(9, socket.MSG_WAITALL) == b"HTTP/1.1 "
                refused.sendall(HEALTH * 100)
                assert read_all(refused).startswith(b"503 ")
        wait_for(lambda: not server.server_state.connections)


def test_refused_connections_do_not_wait_for_ever_and_only_some_wait_at_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vitkit.serve.connections.MAX_LINGERING", 3)
    with make_pool(replace(PATIENT, client_connections=1)) as pool, running_server(pool) as (address, _, server):
        with contextlib.ExitStack() as stack:
            stack.enter_context(connect(address, "127.0.0.2"))
            wait_for(lambda: server.server_state.connections)
            clients = [stack.enter_context(connect(address, "127.0.0.2")) for _ in range(10)]
            assert all(read_all(client).startswith(b"HTTP/1.1 503 ") for client in clients)
            wait_for(lambda: len(server.server_state.connections) == 1)  # although the clients close nothing
        wait_for(lambda: not server.server_state.connections)
