"""Clients that lie, dawdle and flood, against a real server on a real port."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.serve.asking import head
from tests.serve.small import Process, bomb, connect, form, heard, picture

BOMB = bomb()


@pytest.fixture(scope="module")
def strict(run: Path) -> Iterator[Process]:
    """A server of little patience, which every test here must leave in good health."""
    with Process(run, "--limit", "body=2", "patience=1", "seconds=5", "connections=40") as process:
        yield process
        code, errors = process.stop()
        assert (code, errors) == (0, "")


@pytest.fixture
def healthy(strict: Process) -> Iterator[Process]:
    yield strict
    deadline = time.monotonic() + 10
    while True:  # a connection of the test's own may still be closing
        response = httpx.post(f"{strict.address}/v1/predict", files=form(picture(1)), timeout=20)
        if response.status_code == 200 and "vitkit_queue_pictures 0.0" in httpx.get(f"{strict.address}/metrics").text:
            return
        assert time.monotonic() < deadline, response.text
        time.sleep(0.1)


def test_a_gigabyte_with_its_length_told_is_refused_before_it_is_read(healthy: Process):
    before = healthy.resident()
    with connect(healthy.address) as connection:
        connection.sendall(head(10**9))
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    assert healthy.resident() - before < 20


def test_a_gigabyte_in_chunks_is_refused_when_it_is_too_much_and_never_held(healthy: Process):
    before, sent, answer = healthy.resident(), 0, b""
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
        answer = heard(connection)
    assert sent < 300 * 10**6  # it stopped listening long before
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert healthy.resident() - before < 60


def test_a_client_that_sends_less_than_it_said_is_told_that_it_is_slow(healthy: Process):
    with connect(healthy.address) as connection:
        connection.sendall(head(1000) + b'{"pictures"')
        assert heard(connection).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_sends_more_than_it_said_gets_an_answer_to_what_it_said(healthy: Process):
    with connect(healthy.address) as connection:
        connection.sendall(head(2) + b"{}" + b"\x00 more than that" * 100)
        answers = heard(connection)
    assert answers.startswith(b"HTTP/1.1 422 ")
    assert answers.count(b"HTTP/1.1 ") <= 2  # then "400, that is no HTTP", and the end


def test_a_length_told_in_two_ways_is_refused_and_what_follows_is_not_taken_for_a_request(healthy: Process):
    with connect(healthy.address) as connection:
        connection.sendall(
            head(5).replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n") + b"0\r\n\r\n"
            b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        )
        answers = heard(connection)
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert b"in two ways" in answers
    assert answers.count(b"HTTP/1.1 ") == 1


def test_bytes_that_dribble_in_end_with_408(healthy: Process):
    began = time.monotonic()
    with connect(healthy.address) as connection:
        connection.sendall(head(10**5))
        try:
            for _ in range(100):
                connection.sendall(b"A")
                time.sleep(0.05)
        except OSError:
            pass
        assert heard(connection).startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began < 15


def test_a_head_that_dribbles_in_ends_the_connection(healthy: Process):
    began = time.monotonic()
    with connect(healthy.address) as connection:
        try:
            for byte in itertools.cycle(b"GET / HTTP/1.1\r\nx: "):
                connection.sendall(bytes([byte]) if byte not in b"\r\n" else b"x")
                time.sleep(0.05)
        except OSError:
            pass
    assert 0.5 < time.monotonic() - began < 10


def test_a_head_that_never_ends_is_refused(healthy: Process):
    with connect(healthy.address) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 10**5)
        assert heard(connection)[:13] in (b"HTTP/1.1 400 ", b"")


def test_nonsense_is_no_http(healthy: Process):
    for nonsense in (
        b"\x16\x03\x01 a TLS greeting\r\n\r\n",
        b"\0" * 1000 + b"\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\ncontent-length: -5\r\nhost: localhost\r\n\r\n",
    ):
        with connect(healthy.address) as connection:
            connection.sendall(nonsense)
            assert heard(connection)[:13] in (b"HTTP/1.1 400 ", b"")


def test_more_connections_than_there_may_be_are_turned_away_with_retry_after(healthy: Process):
    opened: list[socket.socket] = []
    try:
        for _ in range(45):
            opened.append(connect(healthy.address))
        answer = heard(opened[-1])
    finally:
        for each in opened:
            each.close()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in answer


def test_a_refused_upload_hears_why_although_it_is_still_sending(healthy: Process):
    """As a browser would, which reads the answer only once it has sent everything."""
    with connect(healthy.address) as connection:
        connection.sendall(head(6 * 10**6))
        for _ in range(6):
            connection.sendall(b"A" * 10**6)
        assert heard(connection).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "content",
    [
        BOMB,
        picture(0, kind="JPEG")[:-20],
        picture(0)[:60],
        b"",
        b"GIF89a",
        b"\xff\xd8\xff",
        b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': (9, 9, 99999999999), }".ljust(128),
    ],
)
def test_pictures_that_are_none_cost_nothing_but_their_answer(healthy: Process, content: bytes):
    before = healthy.resident()
    response = httpx.post(f"{healthy.address}/v1/predict", files=form(content, picture(4)), timeout=20)
    bad, good = response.json()["predictions"]
    assert response.status_code == 200
    assert bad["error"]
    assert good["answers"]
    assert healthy.resident() - before < 60


def test_a_bomb_is_told_its_size(healthy: Process):
    response = httpx.post(f"{healthy.address}/v1/predict", files=form(BOMB))
    assert response.status_code == 422
    assert "60000 x 60000 is 3,600,000,000 pixels, over the limit of 50,000,000" in response.json()["error"]


def test_another_name_in_host_is_refused_on_loopback(healthy: Process):
    response = httpx.get(f"{healthy.address}/v1/models", headers={"host": "rebound.example"})
    assert (response.status_code, "name" in response.json()["error"]) == (400, True)


def test_small_answers_are_not_kept_waiting_for_an_acknowledgement(healthy: Process):
    """Without TCP_NODELAY, each takes the 40 ms after which Linux acknowledges what it has."""
    with httpx.Client() as http:
        took = []
        for _ in range(15):
            began = time.monotonic()
            http.get(f"{healthy.address}/healthz")
            took.append(time.monotonic() - began)
    assert min(took[1:]) < 0.03
