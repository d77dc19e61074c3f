"""How a server stops: no answer lost, no more taken, an end to waiting, and no thread left."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.serve.asking import JPEG, asked, head, slow_service
from tests.serve.small import Process, connect, form, heard, in_process, picture, service
from vitkit.serve.limits import Limits

STUCK = """
import sys, threading, time
from vitkit.serve import http_server
from vitkit.serve.model_pool import Service
from tests.serve.small import small_classifier
http_server.FAREWELL = 0.3
with Service({"small": small_classifier()}) as service:
    service.readers.submit(time.sleep, 60)
    with http_server.leaving(whole=sys.argv[1] == "whole"):
        service.stop()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_under_load_loses_no_answer(run: Path, number: int):
    answered, refused, lost = [], [], []
    with Process(run, "--batch", "4") as process:

        def ask(seed: int) -> None:
            contents, http = form(*[picture(seed)] * 8), httpx.Client(timeout=30, headers={"connection": "close"})
            while True:
                try:
                    response = http.post(f"{process.address}/v1/predict", files=contents)
                except httpx.ConnectError:
                    return
                except httpx.HTTPError as error:
                    lost.append(error)
                    return
                if response.status_code == 503:
                    refused.append(response.json())
                    return
                answered.append(response.status_code)

        clients = [threading.Thread(target=ask, args=(seed,)) for seed in range(12)]
        for each in clients:
            each.start()
        deadline = time.monotonic() + 20
        while len(answered) < 30 and time.monotonic() < deadline:
            time.sleep(0.01)
        code, errors = process.stop(number)
        for each in clients:
            each.join(30)
    assert (code, errors, lost) == (0, "", [])
    assert set(answered) == {200}
    assert all("shutting down" in each["error"] for each in refused)


def test_readiness_ends_before_listening_does():
    made, gate, _ = slow_service()
    with made, in_process(made) as (address, loop, http_server):
        waiting: list[int] = []
        client = threading.Thread(
            target=lambda: waiting.append(
                httpx.post(f"{address}/v1/predict", files=form(picture(0)), timeout=30).status_code
            )
        )
        client.start()
        deadline = time.monotonic() + 10
        while not made.admission.pictures and time.monotonic() < deadline:
            time.sleep(0.01)
        loop.call_soon_threadsafe(http_server.handle_exit, signal.SIGTERM, None)
        codes = []
        while time.monotonic() < deadline:
            try:
                codes.append(httpx.get(f"{address}/readyz").status_code)
            except httpx.TransportError:
                break
        assert 503 in codes
        with pytest.raises(httpx.TransportError):  # nobody listens, and the one that was taken in still waits
            httpx.get(f"{address}/readyz")
        assert waiting == []
        gate.set()
        client.join(10)
        assert waiting == [200]


def test_a_key_reaches_the_real_server_and_a_second_signal_ends_it_at_once(run: Path):
    with Process(f"cats={run}", env={"VITKIT_API_KEY": "a-real-key"}) as process:
        assert (process.told["models"], process.told["key_needed"]) == (["cats"], True)
        assert httpx.get(f"{process.address}/v1/models").status_code == 401
        told = httpx.get(f"{process.address}/v1/models", headers={"authorization": "Bearer a-real-key"}).json()
        assert (told["default"], told["key_needed"]) == ("cats", True)
        with connect(process.address) as connection:
            connection.sendall(head(1000).replace(b"\r\n\r\n", b"\r\nx-api-key: a-real-key\r\n\r\n") + b"half of it")
            time.sleep(0.3)
            process.process.send_signal(signal.SIGTERM)
            time.sleep(1.0)
            assert process.process.poll() is None  # it waits for the other half
            process.process.send_signal(signal.SIGTERM)
            assert process.process.wait(5) == 128 + signal.SIGTERM


def test_draining_has_an_end():
    made, gate, _ = slow_service(Limits(seconds=1, patience=1))
    with made, in_process(made) as (address, loop, http_server):
        with connect(address) as unfinished, connect(address) as waiting:
            unfinished.sendall(head(1000)[:-2])
            waiting.sendall(head(10**6) + b"half of it")
            began = time.monotonic()
            while not http_server.server_state.tasks and time.monotonic() < began + 10:
                time.sleep(0.01)
            loop.call_soon_threadsafe(http_server.handle_exit, signal.SIGTERM, None)
            assert heard(waiting)[:13] == b"HTTP/1.1 408 "
            assert heard(unfinished) == b""
        assert time.monotonic() - began < 10
        gate.set()
    assert http_server.unanswered == 0


def test_what_is_still_unanswered_at_the_end_is_known():
    made, gate, _ = slow_service()
    with made, in_process(made) as (address, loop, http_server):
        http_server.config.timeout_graceful_shutdown = 1

        def ask() -> None:
            with contextlib.suppress(httpx.TransportError):
                httpx.post(f"{address}/v1/predict", files=form(picture(0)))

        client = threading.Thread(target=ask)
        client.start()
        deadline = time.monotonic() + 10
        while not made.admission.pictures and time.monotonic() < deadline:
            time.sleep(0.01)
        loop.call_soon_threadsafe(http_server.handle_exit, signal.SIGTERM, None)
        while not http_server.unanswered and time.monotonic() < deadline:
            time.sleep(0.01)
        assert http_server.unanswered == 1
        gate.set()
        client.join(10)


def test_a_draining_server_says_so_and_takes_nothing_new():
    made = service()
    made.admission.draining = True

    async def scene(http: httpx.AsyncClient) -> list[httpx.Response]:
        return [await http.get("/healthz"), await http.get("/readyz"), await http.post("/v1/predict", files=form(JPEG))]

    alive, ready, refused = asked(made, scene)
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
    assert (refused.status_code, refused.headers["retry-after"], refused.headers["connection"]) == (503, "1", "close")


def test_a_service_stops_its_threads():
    made = service()
    with made:
        made.warm()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vitkit")]


@pytest.mark.parametrize(("whole", "code"), [("whole", 0), pytest.param("lost", 1, marks=pytest.mark.slow)])
def test_a_thread_that_cannot_be_stopped_does_not_keep_the_server_alive(whole: str, code: int):
    began = time.monotonic()
    assert subprocess.run([sys.executable, "-c", STUCK, whole], timeout=50).returncode == code
    assert time.monotonic() - began < 40
