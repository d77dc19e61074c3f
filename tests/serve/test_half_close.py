"""Clients that end their side of a connection after the request: those who wait get the response, those gone do not."""

from __future__ import annotations

import json
import socket

from tests.serve.asgi_client import gated_pool, request_bytes, request_head
from tests.serve.servers import connect, make_image, make_pool, read_all, running_server, wait_for
from tests.serve.test_disconnects import disconnected_requests
from vitkit.serve.half_close import STATUS_LINE_START


def half_closed_responses(address: str, request: bytes) -> bytes:
    with connect(address) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


def test_a_client_that_half_closes_gets_the_response_and_then_the_end_of_the_connection():
    with make_pool() as pool, running_server(pool) as (address, _, server):
        head, _, body = half_closed_responses(address, request_bytes(make_image(1))).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert json.loads(body)["predictions"][0]["answers"]
        health = b"GET /healthz HTTP/1.0\r\n\r\n"
        assert half_closed_responses(address, health).endswith(b'{"status":"ok"}')
        wait_for(lambda: not server.server_state.connections)


def test_a_client_that_half_closes_and_waits_gets_an_intact_response():
    """The first bytes of the status line come early, to find out whether the client is still there."""
    pool, gate, sizes = gated_pool()
    with pool, running_server(pool) as (address, _, _), connect(address) as connection:
        connection.sendall(request_bytes(make_image(1)))
        connection.shutdown(socket.SHUT_WR)
        wait_for(lambda: sizes)
        early = b""
        while len(early) < 3:
            early += connection.recv(1)
        assert STATUS_LINE_START.startswith(early)
        assert pool.admission.images == 1
        gate.set()
        response = early + read_all(connection)
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert json.loads(body)["predictions"][0]["answers"]


def test_a_client_that_half_closes_and_goes_away_later_cancels_its_work():
    pool, gate, sizes = gated_pool(batch=1)
    with pool, running_server(pool) as (address, _, server):
        with connect(address) as connection:
            connection.sendall(request_bytes(*map(make_image, range(4))))
            connection.shutdown(socket.SHUT_WR)
            wait_for(lambda: sizes and pool.admission.images == 4)
            assert connection.recv(1) == b"H"  # it still reads
            assert pool.admission.images == 4
        wait_for(lambda: disconnected_requests(pool) == 1 and not server.server_state.connections)
        assert pool.admission.images == 0
        gate.set()
    assert sizes == [1]


def test_pipelined_requests_before_a_half_close_all_get_their_responses():
    with make_pool() as pool, running_server(pool) as (address, _, server):
        requests = [request_bytes(make_image(seed)) for seed in range(3)]
        health = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        responses = half_closed_responses(address, b"".join([*requests, health]))
        assert responses.count(b"HTTP/1.1 200 ") == 4
        assert responses.endswith(b'{"status":"ok"}')
        incomplete = health + request_head(1000) + b"{"
        assert half_closed_responses(address, incomplete).count(b"HTTP/1.1 ") == 1
        wait_for(lambda: not server.server_state.connections and not server.server_state.tasks)


def test_a_half_close_within_a_request_ends_the_connection():
    with make_pool() as pool, running_server(pool) as (address, _, server):
        request = request_bytes(make_image(1))
        for incomplete in (b"", b"GET /", request_head(100), request[:-10]):
            assert half_closed_responses(address, incomplete) == b""
        wait_for(lambda: not server.server_state.connections and not server.server_state.tasks)
        assert (pool.admission.images, pool.admission.bytes) == (0, 0)
