"""Hostile clients, which lie, dawdle and flood, against a real server on a real port."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.serve.asgi_client import request_head
from tests.serve.servers import (
    PATIENT,
    TIMEOUT,
    ServerProcess,
    connect,
    decompression_bomb,
    image_form,
    make_image,
    make_pool,
    read_all,
    running_server,
    wait_for,
)

BOMB = decompression_bomb()


@pytest.fixture(scope="module")
def process(run: Path) -> Iterator[ServerProcess]:
    """A server that every test here must leave in good health."""
    limits = ("body=2", f"patience={TIMEOUT}", f"seconds={TIMEOUT}")
    with ServerProcess(run, "--limit", *limits) as process:
        yield process
        code, errors = process.stop()
        assert (code, errors) == (0, "")


@pytest.fixture
def healthy(process: ServerProcess) -> Iterator[ServerProcess]:
    yield process
    response = httpx.post(f"{process.address}/v1/predict", files=image_form(make_image(1)), timeout=TIMEOUT)
    assert response.status_code == 200, response.text
    metrics = f"{process.address}/metrics"  # a request of the test's own may still be ending
    wait_for(lambda: "vitkit_queue_images 0.0" in httpx.get(metrics, timeout=TIMEOUT).text)


@pytest.fixture(scope="module")
def impatient() -> Iterator[str]:
    """The address of a server that gives a client two seconds for the head of a request, and as many for its body."""
    with make_pool(replace(PATIENT, patience=2)) as pool, running_server(pool) as (address, _, _):
        yield address


def send_slowly(connection: socket.socket, chunks: Iterable[bytes]) -> None:
    """Send a chunk every 50 ms until the server answers or closes the connection."""
    with contextlib.suppress(OSError):
        for chunk in chunks:
            if select.select([connection], [], [], 0.05)[0]:
                return
            connection.sendall(chunk)


def test_a_gigabyte_with_its_length_declared_is_rejected_before_it_is_read(healthy: ServerProcess):
    before = healthy.resident_mb()
    with connect(healthy.address) as connection:
        connection.sendall(request_head(10**9))
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert healthy.resident_mb() - before < 20


def test_a_gigabyte_in_chunks_is_rejected_at_the_limit_and_never_held(healthy: ServerProcess):
    before, sent, response = healthy.resident_mb(), 0, b""
    chunk = b"100000\r\n" + b"A" * 0x100000 + b"\r\n"
    with connect(healthy.address) as connection:
        connection.sendall(
            b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        try:
            while sent < 10**9:
                connection.sendall(chunk)
                sent += 0x100000
        except OSError:
            pass
        response = read_all(connection)
    assert sent < 300 * 10**6  # the server stopped reading long before
    assert response.startswith(b"HTTP/1.1 413 ")
    assert healthy.resident_mb() - before < 60


def test_a_client_that_sends_less_than_it_declared_gets_a_408(impatient: str):
    with connect(impatient) as connection:
        connection.sendall(request_head(1000) + b'{"images"')
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_sends_more_than_it_declared_gets_a_response_to_what_it_declared(healthy: ServerProcess):
    with connect(healthy.address) as connection:
        connection.sendall(request_head(2) + b"{}" + b"\x00 more than that" * 100)
        responses = read_all(connection)
    assert responses.startswith(b"HTTP/1.1 422 ")
    assert responses.count(b"HTTP/1.1 ") <= 2  # then a 400, because the rest is no HTTP, and the end


def test_a_request_with_two_lengths_is_rejected_and_what_follows_is_not_taken_for_a_request(healthy: ServerProcess):
    with connect(healthy.address) as connection:
        connection.sendall(
            request_head(5, headers=("transfer-encoding: chunked",)) + b"0\r\n\r\n"
            b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        )
        responses = read_all(connection)
    assert responses.startswith(b"HTTP/1.1 400 ")
    assert b"both Content-Length and Transfer-Encoding" in responses
    assert responses.count(b"HTTP/1.1 ") == 1


def test_a_body_that_arrives_byte_by_byte_gets_a_408(impatient: str):
    with connect(impatient) as connection:
        connection.sendall(request_head(10**5))
        send_slowly(connection, itertools.repeat(b"A"))
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_a_head_that_arrives_byte_by_byte_ends_the_connection(impatient: str):
    started = time.monotonic()
    with connect(impatient) as connection:
        send_slowly(connection, itertools.chain([b"GET /"], itertools.repeat(b"x")))
        assert read_all(connection) == b""
    assert time.monotonic() - started > 1  # and not before its time is over


def test_a_head_that_never_ends_is_rejected(healthy: ServerProcess):
    with connect(healthy.address) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 10**5)
        assert read_all(connection)[:13] in (b"HTTP/1.1 400 ", b"")


def test_bytes_that_are_no_http_are_rejected(healthy: ServerProcess):
    for request in (
        b"\x16\x03\x01 a TLS greeting\r\n\r\n",
        b"\0" * 1000 + b"\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\ncontent-length: -5\r\nhost: localhost\r\n\r\n",
    ):
        with connect(healthy.address) as connection:
            connection.sendall(request)
            assert read_all(connection)[:13] in (b"HTTP/1.1 400 ", b"")


def test_connections_over_the_limit_get_a_503_with_retry_after():
    with (
        make_pool(replace(PATIENT, connections=3)) as pool,
        running_server(pool) as (address, _, server),
        contextlib.ExitStack() as connections,
    ):
        for client in range(2, 5):
            connections.enter_context(connect(address, f"127.0.0.{client}"))
        wait_for(lambda: len(server.server_state.connections) == 3)
        response = read_all(connections.enter_context(connect(address, "127.0.0.5")))
    assert response.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in response


def test_a_rejected_upload_gets_its_response_although_it_is_still_sending(healthy: ServerProcess):
    """A browser reads the response only after it has sent everything."""
    with connect(healthy.address) as connection:
        connection.sendall(request_head(6 * 10**6))
        for _ in range(6):
            connection.sendall(b"A" * 10**6)
        assert read_all(connection).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "content",
    [
        BOMB,
        make_image(0, kind="JPEG")[:-20],
        make_image(0)[:60],
        b"",
        b"GIF89a",
        b"\xff\xd8\xff",
        b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (9, 9, 99999999999), }".ljust(128),
    ],
)
def test_broken_images_take_no_memory_and_do_not_affect_others(healthy: ServerProcess, content: bytes):
    before = healthy.resident_mb()
    form = image_form(content, make_image(4))
    response = httpx.post(f"{healthy.address}/v1/predict", files=form, timeout=TIMEOUT)
    bad, good = response.json()["predictions"]
    assert response.status_code == 200
    assert bad["error"]
    assert good["answers"]
    assert healthy.resident_mb() - before < 60


def test_a_decompression_bomb_gets_a_422_with_its_size(healthy: ServerProcess):
    response = httpx.post(f"{healthy.address}/v1/predict", files=image_form(BOMB), timeout=TIMEOUT)
    assert response.status_code == 422
    assert "60000 x 60000 is 3,600,000,000 pixels, over the limit of 50,000,000" in response.json()["error"]


def test_a_foreign_host_name_is_rejected_on_loopback(healthy: ServerProcess):
    response = httpx.get(f"{healthy.address}/v1/models", headers={"host": "rebound.example"}, timeout=TIMEOUT)
    assert (response.status_code, "name" in response.json()["error"]) == (400, True)


def test_small_responses_do_not_wait_for_an_acknowledgement():
    """Without TCP_NODELAY, each would take the 40 ms after which Linux acknowledges what it has received."""
    with make_pool() as pool, running_server(pool) as (address, _, server), connect(address):
        wait_for(lambda: server.server_state.connections)
        (connection,) = server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
