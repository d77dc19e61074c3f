"""Decode processes: what hangs is stopped, what crashes is replaced, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.serve.asgi_client import run_requests, wait_until
from tests.serve.servers import PATIENT, TIMEOUT, ServerProcess, image_form, make_image, make_pool, wait_for
from vitkit.errors import DecodeError
from vitkit.serve import decode_pool, decode_process
from vitkit.serve.client_use import MAX_CLIENTS, MINUTE, ClientUse
from vitkit.serve.decode_pool import DecodePool
from vitkit.serve.decode_process import DecodeProcess, TimeLimit
from vitkit.serve.decode_task import DecodedImage, DecodeTask
from vitkit.serve.limits import Limits
from vitkit.serve.upload import Upload

LIMITS = replace(PATIENT, decode_seconds=1)
LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux counts and bounds memory in /proc")


@dataclass(frozen=True)
class Stub(DecodeTask):
    """A task whose content names what the decoder does."""

    def __call__(self, content: bytes) -> DecodedImage:
        match content.split()[0]:
            case b"spin":
                while True:
                    pass
            case b"sleep":
                time.sleep(3600)
            case b"crash":
                ctypes.string_at(0)
            case b"exit":
                os._exit(0)
            case b"allocate":
                try:
                    np.ones(2**36, np.uint8)  # 64 GiB
                except MemoryError:
                    raise DecodeError("out of memory") from None
            case b"signals":
                for number in (signal.SIGINT, signal.SIGTERM):
                    os.kill(os.getpid(), number)
            case b"append":
                with open(content.split()[1], "ab") as file:
                    file.write(content.split()[2] + b"\n")
            case b"wait":
                while not Path(content.split()[1].decode()).exists():
                    time.sleep(0.002)
            case b"warn":
                with contextlib.redirect_stderr(io.StringIO()) as written:
                    warnings.warn("damaged Exif", stacklevel=1)
                    logging.getLogger("tifffile").error("damaged TIFF")
                if not os.path.samestat(os.fstat(2), os.stat(os.devnull)):
                    raise DecodeError("libraries in C write to the server's stderr")
                if written.getvalue():
                    raise DecodeError(f"written to stderr: {written.getvalue()}")
            case b"bad":
                raise DecodeError("not an image")
            case b"large":
                return DecodedImage(torch.zeros(3, 100, 100))
        return DecodedImage(torch.full(self.shape, float(os.getpid() % 1000)))


def stub() -> Stub:
    return Stub(**vars(make_task()))


def make_task() -> DecodeTask:
    with make_pool() as pool:
        return pool.worker(None).decode_task


@contextmanager
def pool_of(limits: Limits = LIMITS, processes: int = 2) -> Iterator[DecodePool]:
    pool = DecodePool(processes, limits)
    try:
        yield pool
    finally:
        pool.shutdown()


def run(pool: DecodePool, scenario: Callable[[Callable[..., Awaitable[Any]]], Awaitable[Any]]) -> Any:
    """Run a scenario with a function that decodes for a client, and returns an error instead of raising it."""
    task = stub()

    async def decode(content: bytes, client: str = "a", request: object = 0) -> DecodedImage | str:
        try:
            return await pool.decode(task, Upload(content), client=client, request=request)
        except DecodeError as error:
            return str(error)

    async def main() -> Any:
        async with asyncio.timeout(TIMEOUT):
            return await scenario(decode)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"crash", "crashed"),
        (b"exit", "crashed"),
        (b"large", "crashed"),
        (b"bad", "not an image"),
        pytest.param(b"allocate", "out of memory", marks=LINUX),
    ],
)
def test_an_image_that_a_decoder_does_not_survive_has_an_error_of_its_own(content: bytes, reason: str):
    async def scenario(decode: Callable[..., Awaitable[Any]]) -> list[Any]:
        return [*await asyncio.gather(decode(b"good"), decode(content), decode(b"good")), await decode(b"good")]

    with pool_of() as pool:
        before, error, after, later = run(pool, scenario)
    assert reason in error
    assert all(isinstance(decoded, DecodedImage) for decoded in (before, after, later))


def test_a_decoder_that_waits_for_ever_is_stopped_and_its_process_replaced():
    process, task = DecodeProcess(10**6), stub()
    try:
        process.start()
        first = process.pid
        limit = TimeLimit(processor=TIMEOUT, elapsed=TIMEOUT)
        with stopping(process), pytest.raises(decode_process.DecodeStopped):
            process.decode(task, b"sleep", limit)
        decoded, _ = process.decode(task, b"good", limit)
        assert isinstance(decoded, DecodedImage)
        assert process.pid != first
    finally:
        process.close()


@pytest.mark.parametrize("error", [MemoryError, RecursionError, KeyboardInterrupt])
def test_an_answer_that_could_not_be_read_is_not_taken_for_that_to_the_next_image(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise error

    process, task, limit = DecodeProcess(10**6), stub(), TimeLimit(processor=TIMEOUT, elapsed=TIMEOUT)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(decode_process, "receive_answer", fail)
            with pytest.raises(error):
                process.decode(task, b"bad image of one client", limit)
        decoded, _ = process.decode(task, b"good image of another", limit)
        assert isinstance(decoded, DecodedImage)
    finally:
        process.close()


@contextmanager
def stopping(process: DecodeProcess) -> Iterator[None]:
    timer = threading.Timer(0.2, process.stop)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def test_a_job_that_proves_long_is_stopped_and_waits_again_as_a_long_one(monkeypatch: pytest.MonkeyPatch):
    """The short limit is for those that seem short; then the image gets all of its time."""
    monkeypatch.setattr(decode_pool, "SHORT_LIMIT", 0.2)

    async def scenario(decode: Callable[..., Awaitable[Any]]) -> Any:
        return await decode(b"spin")

    with pool_of() as pool:
        assert "longer than 1 s" in run(pool, scenario)
        assert pool.use.of("a") > 1.1  # both attempts were charged


def test_a_short_job_never_waits_for_long_ones(tmp_path: Path):
    gate = tmp_path / "gate"
    long = b"P6 7000 7000 255\n"  # 49 megapixels
    assert decode_pool.estimate_seconds(Upload(long)) > decode_pool.SHORT_SECONDS

    async def scenario(decode: Callable[..., Awaitable[Any]]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode_pool, "estimate_seconds", lambda upload: 9.0)
            waiting = [asyncio.create_task(decode(b"wait %s" % bytes(gate), client=str(number))) for number in range(4)]
            await asyncio.sleep(0)
        decoded = [await decode(b"good", client="new") for _ in range(3)]
        assert all(isinstance(image, DecodedImage) for image in decoded)
        assert not any(task.done() for task in waiting)
        gate.touch()
        await asyncio.gather(*waiting)

    with pool_of(PATIENT) as pool:
        run(pool, scenario)


def test_jobs_that_nobody_waits_for_are_not_decoded(tmp_path: Path):
    gate, log = tmp_path / "gate", tmp_path / "log"

    async def scenario(decode: Callable[..., Awaitable[Any]]) -> None:
        running = [asyncio.create_task(decode(b"wait %s" % bytes(gate))) for _ in range(2)]
        await asyncio.sleep(0)
        cancelled = asyncio.create_task(decode(b"append %s cancelled" % bytes(log)))
        last = asyncio.create_task(decode(b"append %s last" % bytes(log)))
        await asyncio.sleep(0)
        cancelled.cancel()
        running[0].cancel()  # although its process still decodes
        await asyncio.sleep(0)
        gate.touch()
        await asyncio.gather(last, running[1])
        await wait_until(lambda: len(pool._free) == 2)

    with pool_of(PATIENT) as pool:
        run(pool, scenario)
        assert len(pool._queue) == 0
    assert log.read_text() == "last\n"


def test_signals_to_the_group_do_not_end_a_decode_process():
    async def scenario(decode: Callable[..., Awaitable[Any]]) -> list[Any]:
        return [await decode(b"signals"), await decode(b"good")]

    with pool_of(PATIENT) as pool:
        pool.start()
        pids = [process.pid for process in pool.processes]
        assert all(isinstance(decoded, DecodedImage) for decoded in run(pool, scenario))
        assert [process.pid for process in pool.processes] == pids


def test_an_image_cannot_make_a_decoder_write_to_the_stderr_of_the_server():
    with pool_of(PATIENT) as pool:
        assert isinstance(run(pool, lambda decode: decode(b"warn")), DecodedImage)


def test_an_image_that_is_refused_at_once_is_charged_for_being_sent():
    content = b"bad " + bytes(1_000_000)
    with pool_of() as pool:
        assert run(pool, lambda decode: decode(content)) == "not an image"
        assert pool.use.of("a") > 0.9 * decode_pool.least_seconds(content) > 0.9 * decode_pool.SECONDS_PER_BYTE * 10**6


@LINUX
def test_a_pool_ends_its_processes_even_while_they_decode():
    with pool_of(PATIENT) as pool:
        pool.start()
        pids = [process.pid for process in pool.processes]

        async def scenario(decode: Callable[..., Awaitable[Any]]) -> None:
            asyncio.create_task(decode(b"sleep"))  # noqa: RUF006
            await asyncio.sleep(0.05)

        run(pool, scenario)
    wait_for(lambda: not any(is_running(pid) for pid in pids))


@LINUX
def test_a_killed_decoder_costs_its_image_an_error_and_a_killed_server_leaves_no_process(run: Path):
    """As the kernel kills where memory has run out."""
    with ServerProcess(run, "--limit", f"seconds={TIMEOUT}", f"patience={TIMEOUT}") as server:
        url, form = f"{server.address}/v1/predict", image_form(make_image(1))
        decoders = [pid for pid in descendants(server.process.pid) if parent(pid) != server.process.pid]
        assert len(decoders) >= 2
        for pid in decoders:
            os.kill(pid, signal.SIGKILL)
        statuses = [httpx.post(url, files=form, timeout=TIMEOUT).status_code for _ in range(6)]
        assert set(statuses) <= {200, 422}
        assert statuses[-3:] == [200] * 3
        pids = descendants(server.process.pid)
        assert set(decoders) & set(pids) == set()
        assert len(pids) >= 2  # the forkserver and a new decode process
        server.process.kill()
        server.process.wait()
        wait_for(lambda: not any(is_running(pid) for pid in pids))


def test_a_request_has_answers_for_the_images_beside_one_that_is_stopped():
    pool = make_pool(LIMITS)
    worker = pool.worker(None)
    worker.decode_task = Stub(**vars(worker.decode_task))
    response = run_requests(
        pool, lambda http: http.post("/v1/predict", files=image_form(b"good", b"spin", b"crash", b"good"))
    )
    errors = [row["error"] for row in response.json()["predictions"]]
    assert response.status_code == 200
    assert (errors[0], errors[3]) == (None, None)
    assert "it took longer than 1 s to decode" in errors[1]
    assert "crashed" in errors[2]


def test_the_use_of_a_client_decays_and_old_clients_are_forgotten():
    now = 0.0
    use = ClientUse(lambda: now)
    use.add("a", 8)
    now = MINUTE
    assert use.of("a") == pytest.approx(8 / np.e)
    use.add("a", 1)
    assert use.of("a") == pytest.approx(8 / np.e + 1)
    assert use.of("b") == 0
    for number in range(2 * MAX_CLIENTS):
        use.add(number, 1)
    assert len(use._used) <= MAX_CLIENTS


def is_running(pid: int | None) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def descendants(pid: int) -> list[int]:
    children = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        children += [int(child) for child in (thread / "children").read_text().split()]
    return [*children, *(other for child in children for other in descendants(child))]
