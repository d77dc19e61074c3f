"""Graceful shutdown: every accepted request gets its response, no new one is accepted, and no thread is left."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.serve.asgi_client import JPEG_IMAGE, gated_pool, request_bytes, request_head, run_requests
from tests.serve.servers import (
    PATIENT,
    TIMEOUT,
    ServerProcess,
    connect,
    image_form,
    make_image,
    make_pool,
    read_all,
    running_server,
    wait_for,
)
from vitkit.serve import http_server

STUCK_THREAD = """
import sys, time
from tests.serve.servers import make_pool
from vitkit.serve import http_server
http_server.THREAD_EXIT_SECONDS = 0.3
with make_pool() as pool:
    pool.thread_executor.submit(time.sleep, 3600)
    with http_server.exit_deadline(all_answered=sys.argv[1] == "answered"):
        pool.shutdown()
"""
CONTINUE = b"HTTP/1.1 100 "


def ready_status(address: str) -> int | None:
    """Return the status of /readyz, or None if nobody listens."""
    try:
        return httpx.get(f"{address}/readyz", headers={"connection": "close"}, timeout=TIMEOUT).status_code
    except httpx.TransportError:
        return None


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_under_load_loses_no_response(run: Path, number: int):
    statuses: list[int] = []
    lost: list[Exception] = []
    stopping = threading.Event()
    with ServerProcess(run, "--batch", "4", "--limit", f"seconds={TIMEOUT}", f"patience={TIMEOUT}") as process:

        def send_requests(seed: int) -> None:
            form = image_form(*[make_image(seed)] * 8)
            with httpx.Client(timeout=TIMEOUT, headers={"connection": "close"}) as http:
                while not stopping.is_set():
                    try:
                        statuses.append(http.post(f"{process.address}/v1/predict", files=form).status_code)
                    except httpx.ConnectError:  # the server no longer listens
                        return
                    except httpx.HTTPError as error:
                        lost.append(error)
                        return

        clients = [threading.Thread(target=send_requests, args=(seed,)) for seed in range(12)]
        for client in clients:
            client.start()
        wait_for(lambda: len(statuses) >= 30 or lost)
        stopping.set()
        code, errors = process.stop(number)
        for client in clients:
            client.join(TIMEOUT)
    assert (code, errors, lost) == (0, "", [])
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 30


def test_readiness_ends_before_listening_does(monkeypatch: pytest.MonkeyPatch):
    noticed = threading.Event()

    async def wait_until_noticed(seconds: float) -> None:
        while not noticed.is_set():
            await asyncio.sleep(0.005)

    monkeypatch.setattr(http_server, "asyncio", SimpleNamespace(sleep=wait_until_noticed))  # not the clock decides
    pool, gate, _ = gated_pool()
    with pool, running_server(pool) as (address, loop, server), connect(address) as client:
        client.sendall(request_bytes(make_image(0)))
        wait_for(lambda: pool.admission.images)
        assert ready_status(address) == 200
        loop.call_soon_threadsafe(server.handle_exit, signal.SIGTERM, None)
        wait_for(lambda: ready_status(address) == 503)
        noticed.set()
        wait_for(lambda: ready_status(address) is None)
        assert pool.admission.images == 1  # nobody listens, and the accepted request still waits
        gate.set()
        assert read_all(client).startswith(b"HTTP/1.1 200 ")


def test_the_server_requires_its_key_and_a_second_signal_ends_it_at_once(run: Path):
    limits = ("--limit", f"patience={TIMEOUT}")
    with ServerProcess(f"cats={run}", *limits, env={"VITKIT_API_KEY": "a-real-key"}) as process:
        assert (process.startup["models"], process.startup["key_needed"]) == (["cats"], True)
        assert httpx.get(f"{process.address}/v1/models", timeout=TIMEOUT).status_code == 401
        headers = {"authorization": "Bearer a-real-key"}
        models = httpx.get(f"{process.address}/v1/models", headers=headers, timeout=TIMEOUT).json()
        assert (models["default"], models["key_needed"]) == ("cats", True)
        with connect(process.address) as connection:
            connection.sendall(request_head(1000, headers=("x-api-key: a-real-key", "expect: 100-continue")))
            assert connection.recv(65536).startswith(CONTINUE)  # it reads the body
            connection.sendall(b"half of it")
            process.process.send_signal(signal.SIGTERM)
            wait_for(lambda: ready_status(process.address) != 200)
            assert process.process.poll() is None  # it waits for the other half
            process.process.send_signal(signal.SIGTERM)
            assert process.process.wait(TIMEOUT) == 128 + signal.SIGTERM


def test_a_graceful_shutdown_does_not_wait_for_slow_clients():
    pool, gate, _ = gated_pool(replace(PATIENT, seconds=1, patience=2))
    with pool, running_server(pool) as (address, loop, server):
        with connect(address) as incomplete_head, connect(address) as incomplete_body:
            incomplete_head.sendall(request_head(1000)[:-2])
            incomplete_body.sendall(request_head(10**6, headers=("expect: 100-continue",)))
            assert incomplete_body.recv(65536).startswith(CONTINUE)
            loop.call_soon_threadsafe(server.handle_exit, signal.SIGTERM, None)
            assert read_all(incomplete_body).startswith(b"HTTP/1.1 408 ")
            assert read_all(incomplete_head) == b""
        gate.set()
    assert server.unanswered == 0


def test_the_server_counts_the_requests_that_a_shutdown_left_unanswered():
    pool, gate, _ = gated_pool()
    with pool, running_server(pool) as (address, loop, server), connect(address) as client:
        server.config.timeout_graceful_shutdown = 1
        client.sendall(request_bytes(make_image(0)))
        wait_for(lambda: pool.admission.images)
        loop.call_soon_threadsafe(server.handle_exit, signal.SIGTERM, None)
        wait_for(lambda: server.unanswered)
        assert server.unanswered == 1
        gate.set()


def test_a_draining_server_reports_it_and_rejects_new_requests():
    pool = make_pool()
    pool.admission.draining = True

    async def requests(http: httpx.AsyncClient) -> list[httpx.Response]:
        form = image_form(JPEG_IMAGE)
        return [await http.get("/healthz"), await http.get("/readyz"), await http.post("/v1/predict", files=form)]

    alive, ready, rejected = run_requests(pool, requests)
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
    assert (rejected.status_code, rejected.headers["retry-after"], rejected.headers["connection"]) == (
        503,
        "1",
        "close",
    )
    assert "shutting down" in rejected.json()["error"]


def test_a_pool_ends_its_threads():
    before = {*threading.enumerate()}  # of other tests in this process, which may have read from a remote store
    with make_pool() as pool:
        pool.warm_up()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vitkit") and thread not in before]


@pytest.mark.parametrize(("outcome", "code"), [("answered", 0), pytest.param("lost", 1, marks=pytest.mark.slow)])
def test_a_thread_that_cannot_be_stopped_does_not_keep_the_server_alive(outcome: str, code: int):
    assert subprocess.run([sys.executable, "-c", STUCK_THREAD, outcome], timeout=TIMEOUT).returncode == code
