"""Clients that lie, dawdle, leave and flood, against a real server on a real port; and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.serve.web.small import Process, bomb, connect, form, heard, in_process, picture, service, small_run
from tests.serve.web.test_app import slow_service
from vitkit.cli import main
from vitkit.serve.web.limits import Limits

BOMB = bomb()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs") / "small")


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


def head(length: int | str, path: str = "/v1/predict", kind: str = "application/json") -> bytes:
    return (f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n"
            f"content-length: {length}\r\n\r\n").encode()


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
        connection.sendall(b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                           b"transfer-encoding: chunked\r\n\r\n")
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
    for nonsense in (b"\x16\x03\x01 a TLS greeting\r\n\r\n", b"\0" * 1000 + b"\r\n\r\n",
                     b"GET /v1/models HTTP/1.1\r\ncontent-length: -5\r\nhost: localhost\r\n\r\n"):
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


@pytest.mark.parametrize("content", [BOMB, picture(0, kind="JPEG")[:-20], picture(0)[:60], b"", b"GIF89a",
                                     b"\xff\xd8\xff",
                                     b"\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, "
                                     b"'shape': (9, 9, 99999999999), }".ljust(128)])
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


def test_a_refused_upload_hears_why_although_it_is_still_sending(healthy: Process):
    """As a browser would, which reads the answer only once it has sent everything."""
    with connect(healthy.address) as connection:
        connection.sendall(head(6 * 10**6))
        for _ in range(6):
            connection.sendall(b"A" * 10**6)
        assert heard(connection).startswith(b"HTTP/1.1 413 ")


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
                connection.sendall(head(len(part), kind=kinds) + part)       # gone while its picture waits
            elif place % 3 == 1:
                connection.sendall(head(len(part), kind=kinds) + part[:80])  # gone within its body
            else:
                connection.sendall(head(10**5)[:-9])                         # gone within its head
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
    with service(Limits(seconds=1, patience=2)) as made, in_process(made) as (address, _, server), \
            connect(address) as connection:
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
    with made, in_process(made) as (address, loop, server):
        waiting: list[int] = []
        client = threading.Thread(target=lambda: waiting.append(
            httpx.post(f"{address}/v1/predict", files=form(picture(0)), timeout=30).status_code))
        client.start()
        deadline = time.monotonic() + 10
        while not made.admission.pictures and time.monotonic() < deadline:
            time.sleep(0.01)
        loop.call_soon_threadsafe(server.handle_exit, signal.SIGTERM, None)
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
    with made, in_process(made) as (address, loop, server):
        with connect(address) as unfinished, connect(address) as waiting:
            unfinished.sendall(head(1000)[:-2])
            waiting.sendall(head(10**6) + b"half of it")
            began = time.monotonic()
            while not server.server_state.tasks and time.monotonic() < began + 10:
                time.sleep(0.01)
            loop.call_soon_threadsafe(server.handle_exit, signal.SIGTERM, None)
            assert heard(waiting)[:13] == b"HTTP/1.1 408 "
            assert heard(unfinished) == b""
        assert time.monotonic() - began < 10
        gate.set()
    assert server.unanswered == 0


def test_what_is_still_unanswered_at_the_end_is_known():
    made, gate, _ = slow_service()
    with made, in_process(made) as (address, loop, server):
        server.config.timeout_graceful_shutdown = 1

        def ask() -> None:
            with contextlib.suppress(httpx.TransportError):
                httpx.post(f"{address}/v1/predict", files=form(picture(0)))

        client = threading.Thread(target=ask)
        client.start()
        deadline = time.monotonic() + 10
        while not made.admission.pictures and time.monotonic() < deadline:
            time.sleep(0.01)
        loop.call_soon_threadsafe(server.handle_exit, signal.SIGTERM, None)
        while not server.unanswered and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.unanswered == 1
        gate.set()
        client.join(10)


def mistake(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["serve", *map(str, words)])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_mistakes_of_the_command_line_are_said_without_a_traceback(run: Path, tmp_path: Path,
                                                                   capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--port {port}: Address already in use" in mistake(capsys, run, "--port", str(port))
    assert "two models are named small" in mistake(capsys, run, run)
    assert "did you mean queue" in mistake(capsys, run, "--limit", "quue=5")
    (tmp_path / "key").write_text("short")
    assert "8 or more" in mistake(capsys, run, "--key-file", tmp_path / "key")
    assert "no such address" in mistake(capsys, run, "--host", "no.such.host.invalid")
    assert "0.0.0.0 to be open" in mistake(capsys, run, "--host", "192.0.2.1")  # nobody's: RFC 5737
    assert "65535" in mistake(capsys, run, "--port", "65536")
    assert "an origin is needed" in mistake(capsys, run, "--cors", "https://example.org/path")
    assert "nowhere" in mistake(capsys, tmp_path / "nowhere", "--port", "0")
    assert "no model named" in mistake(capsys)


def test_keys_names_and_limits_are_checked_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from vitkit.errors import ConfigError
    from vitkit.serve.web.limits import limits_of
    from vitkit.verbs.serving import key_of, names_of

    (tmp_path / "pets").mkdir()
    assert names_of([str(tmp_path / "pets"), "cats=runs/x", "hf:google/vit-base", "w/model.safetensors"]) == {
        "pets": str(tmp_path / "pets"), "cats": "runs/x", "vit-base": "hf:google/vit-base",
        "model": "w/model.safetensors"}
    for wrong in ([], ["a b=runs/x"], ["x="], ["a=1", "a=2"], ["<b>=x"]):
        with pytest.raises(ConfigError):
            names_of(wrong)
    monkeypatch.setenv("VITKIT_API_KEY", "from-the-environment")
    assert key_of(None) == "from-the-environment"
    with pytest.raises(ConfigError, match="one is needed"):
        key_of(tmp_path / "key")
    monkeypatch.setenv("VITKIT_API_KEY", "")
    with pytest.raises(ConfigError, match="cannot be used"):  # an empty one is no wish for none
        key_of(None)
    monkeypatch.delenv("VITKIT_API_KEY")
    (tmp_path / "key").write_text("from-the-file\n")
    assert (key_of(None), key_of(tmp_path / "key")) == (None, "from-the-file")
    for wrong in (["queue"], ["queue=x"], ["queue=-1"], ["queue=0"], ["queue=1.5"], ["pictures=300"], ["body=300"]):
        with pytest.raises(ConfigError, match="--limit"):
            limits_of(wrong)


def test_the_start_says_what_is_served_and_warns_where_it_is_open(run: Path, capsys: pytest.CaptureFixture[str],
                                                                  monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vitkit.serve.web.server.run", lambda app, service, listener, say: say() or True)
    main(["serve", str(run), f"again={run}", "--port", "0", "--host", "0.0.0.0", "--batch", "3", "--device", "cpu"])
    said, errors = capsys.readouterr()
    assert "model    small (default): mu/8 at 32 x 32 px, 10 classes" in said
    assert "model    again: mu/8" in said
    assert "computes exact: float32 on cpu" in said
    assert "up to 3 pictures together" in said
    assert "256 pictures wait at most" in said
    assert "serving  http://0.0.0.0:" in said
    assert "bound to 0.0.0.0 without a key" in errors


def test_a_service_stops_its_threads():
    made = service()
    with made:
        made.warm()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vitkit")]


def test_small_answers_are_not_kept_waiting_for_an_acknowledgement(healthy: Process):
    """Without TCP_NODELAY, each takes the 40 ms after which Linux acknowledges what it has."""
    with httpx.Client() as http:
        took = []
        for _ in range(15):
            began = time.monotonic()
            http.get(f"{healthy.address}/healthz")
            took.append(time.monotonic() - began)
    assert min(took[1:]) < 0.03


def test_a_length_told_in_two_ways_is_refused_and_what_follows_is_not_taken_for_a_request(healthy: Process):
    with connect(healthy.address) as connection:
        connection.sendall(head(5).replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n") + b"0\r\n\r\n"
                           b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answers = heard(connection)
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert b"in two ways" in answers
    assert answers.count(b"HTTP/1.1 ") == 1


def test_with_a_key_the_server_answers_under_any_name(run: Path, monkeypatch: pytest.MonkeyPatch):
    """As behind a proxy; a page that has its name point here does not know the key."""
    asked: list[object] = []
    monkeypatch.setattr("vitkit.serve.web.app.create_app", lambda service, **options: asked.append(options["hosts"]))
    monkeypatch.setattr("vitkit.serve.web.server.run", lambda app, service, listener, say: True)
    main(["serve", str(run), "--port", "0", "--device", "cpu"])
    monkeypatch.setenv("VITKIT_API_KEY", "a-long-key")
    main(["serve", str(run), "--port", "0", "--device", "cpu"])
    assert asked == [{"localhost", "127.0.0.1", "::1"}, None]


STUCK = """
import sys, threading, time
from vitkit.serve.web import server
from vitkit.serve.web.service import Service
from tests.serve.web.small import small_classifier
server.FAREWELL = 0.3
with Service({"small": small_classifier()}) as service:
    service.readers.submit(time.sleep, 60)
    with server.leaving(whole=sys.argv[1] == "whole"):
        service.stop()
"""


@pytest.mark.parametrize(("whole", "code"), [("whole", 0), pytest.param("lost", 1, marks=pytest.mark.slow)])
def test_a_thread_that_cannot_be_stopped_does_not_keep_the_server_alive(whole: str, code: int):
    began = time.monotonic()
    assert subprocess.run([sys.executable, "-c", STUCK, whole], timeout=50).returncode == code
    assert time.monotonic() - began < 40
