"""Clients that disconnect or never read: the server computes nothing for them and keeps nothing of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from dataclasses import replace

import httpx

from tests.serve.asgi_client import gated_pool, request_bytes, request_head
from tests.serve.servers import PATIENT, TIMEOUT, connect, image_form, make_image, make_pool, running_server, wait_for
from vitkit.serve.model_pool import ModelPool


def disconnected_requests(pool: ModelPool) -> float | None:
    labels = {"route": "/v1/predict", "status": "499"}
    return pool.metrics.registry.get_sample_value("vitkit_requests_total", labels)


def test_disconnected_clients_leave_no_task_thread_or_image_behind():
    pool, gate, _ = gated_pool(replace(PATIENT, body=2), batch=2)
    with pool, running_server(pool) as (address, loop, server):

        def tasks() -> int:
            return len(asyncio.all_tasks(loop))

        httpx.get(f"{address}/healthz", headers={"connection": "close"}, timeout=TIMEOUT)
        wait_for(lambda: not server.server_state.connections)
        before = tasks()
        request = request_bytes(make_image(1))
        connections = [connect(address) for _ in range(12)]
        for index, connection in enumerate(connections):
            if index % 3 == 0:
                connection.sendall(request)  # disconnects while its image is in the queue
            elif index % 3 == 1:
                connection.sendall(request[:-40])  # disconnects within its body
            else:
                connection.sendall(request_head(10**5)[:-9])  # disconnects within its head
        wait_for(lambda: pool.admission.images == 4)
        wait_for(lambda: len(server.server_state.tasks) == 8)
        for connection in connections:
            connection.close()
        wait_for(lambda: disconnected_requests(pool) == 8 and not server.server_state.connections)
        assert pool.admission.images == 0  # although the engine still computes some of them
        gate.set()
        wait_for(lambda: tasks() <= before)
        assert (pool.admission.images, pool.admission.bytes) == (0, 0)
        response = httpx.post(f"{address}/v1/predict", files=image_form(make_image(1)), timeout=TIMEOUT)
        assert response.status_code == 200
        assert disconnected_requests(pool) == 8
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vitkit")]


def test_a_client_that_never_reads_its_responses_is_disconnected():
    with (
        make_pool(replace(PATIENT, seconds=1)) as pool,
        running_server(pool) as (address, _, server),
        connect(address) as connection,
    ):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wait_for(lambda: server.server_state.connections)
        with contextlib.suppress(OSError):
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2000)
        wait_for(lambda: not server.server_state.connections)


def test_the_images_of_a_disconnected_client_are_not_computed():
    pool, gate, sizes = gated_pool(batch=1)
    with pool, running_server(pool) as (address, _, _), connect(address) as first:
        first.sendall(request_bytes(make_image(0)))
        wait_for(lambda: sizes)
        with connect(address) as second:
            second.sendall(request_bytes(*map(make_image, range(8))))
            wait_for(lambda: pool.admission.images == 9)
        wait_for(lambda: pool.admission.images == 1)
        gate.set()
        assert first.recv(65536).startswith(b"HTTP/1.1 200 ")
        response = httpx.post(f"{address}/v1/predict", files=image_form(make_image(1)), timeout=TIMEOUT)
        assert response.status_code == 200
    assert sizes == [1, 1]
