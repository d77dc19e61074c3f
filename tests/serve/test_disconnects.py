"""Clients that leave, or never listen: nothing is computed for them, and nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.serve.asking import head, slow_service
from tests.serve.small import connect, form, in_process, picture, service
from vitkit.serve.limits import Limits


def test_after_every_fault_no_task_thread_or_picture_is_left(tmp_path: Path):
    made, gate, _ = slow_service(Limits(patience=1, seconds=3, body=2), batch=2)
    with made, in_process(made) as (address, loop, server):

        def tasks() -> int:
            return len(asyncio.all_tasks(loop))

        httpx.get(f"{address}/healthz", headers={"connection": "close"})
        before = tasks()
        kinds = "multipart/form-data; boundary=b"
        part = b'--b\r\ncontent-disposition: form-data; name="pictures"\r\n\r\n' + picture(1) + b"\r\n--b--\r\n"
        connections = [connect(address) for _ in range(12)]
        for place, connection in enumerate(connections):
            if place % 3 == 0:
                connection.sendall(head(len(part), kind=kinds) + part)  # gone while its picture waits
            elif place % 3 == 1:
                connection.sendall(head(len(part), kind=kinds) + part[:80])  # gone within its body
            else:
                connection.sendall(head(10**5)[:-9])  # gone within its head
        deadline = time.monotonic() + 10
        while made.admission.pictures < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert made.admission.pictures == 4
        for connection in connections:
            connection.close()
        while (made.admission.pictures or server.server_state.connections) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert made.admission.pictures == 0  # nobody waits for them any longer, computed or not
        gate.set()
        while tasks() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert tasks() <= before
        assert (made.admission.pictures, made.admission.bytes) == (0, 0)
        assert httpx.post(f"{address}/v1/predict", files=form(picture(1))).status_code == 200
        gone = made.meters.registry.get_sample_value("vitkit_requests_total", {"route": "/v1/predict", "status": "499"})
        assert gone == 8
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vitkit")]


def test_a_client_that_never_reads_its_answers_is_let_go():
    with (
        service(Limits(seconds=1, patience=2)) as made,
        in_process(made) as (address, _, server),
        connect(address) as connection,
    ):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(OSError):
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2000)
        deadline = time.monotonic() + 15
        while server.server_state.connections and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not server.server_state.connections


def test_the_pictures_of_a_client_that_left_are_not_computed():
    made, gate, sizes = slow_service(batch=1)
    with made, in_process(made) as (address, _, _):
        first = threading.Thread(target=httpx.post, args=(f"{address}/v1/predict",), kwargs={"files": form(picture(0))})
        first.start()
        deadline = time.monotonic() + 10
        while not sizes and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}/v1/predict", files=form(*map(picture, range(8))), timeout=0.5)
        while made.admission.pictures > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        gate.set()
        first.join(10)
        assert httpx.post(f"{address}/v1/predict", files=form(picture(1))).status_code == 200
    assert sizes == [1, 1]
