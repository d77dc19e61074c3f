"""Small models, distinct images, and servers in this process or another, for the tests of the server."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import vitkit
from tests.model.kinds import make
from vitkit.serve.app import create_app
from vitkit.serve.http_server import GracefulServer, address_of, bind, make_server
from vitkit.serve.limits import Limits
from vitkit.serve.model_pool import ModelPool

COMMAND = [sys.executable, "-m", "vitkit", "serve"]
TIMEOUT = 300  # seconds until a test gives up; no test waits for it unless something is broken
PATIENT = Limits(seconds=TIMEOUT, patience=TIMEOUT)  # so that a slow machine does not run into a limit
EPS = float(np.finfo(np.float32).eps)
PROBABILITY_ATOL = 8 * EPS * 10_000**0.5  # a forward pass that sums up to 10,000 products in another order


def small_classifier(kind: str = "token") -> vitkit.Classifier:
    return vitkit.Classifier(make(kind))


def small_run(folder: Path, kind: str = "token") -> Path:
    vitkit.save(make(kind), folder, format="vitkit")
    return folder


def make_pool(limits: Limits = PATIENT, *, batch: int | None = None, kind: str = "token", **models: Any) -> ModelPool:
    return ModelPool(models or {"small": small_classifier(kind)}, limits, batch=batch)


def make_image(seed: int, size: tuple[int, int] = (40, 36), kind: str = "PNG") -> bytes:
    """Return blocks of colour, different for each seed; a model could not tell noise of two seeds apart."""
    rng = np.random.default_rng(seed)
    blocks = Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8)).resize(size, Image.Resampling.NEAREST)
    file = io.BytesIO()
    blocks.save(file, kind)
    return file.getvalue()


def decompression_bomb() -> bytes:
    """Return a PNG whose header declares 60000 x 60000 pixels."""
    import struct
    import zlib

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1_000_000))) + chunk(b"IEND", b"")


def image_form(*images: bytes, field: str = "images") -> list[tuple[str, tuple[str, bytes, str]]]:
    """Return images in the form that httpx takes as files=."""
    return [(field, (f"{index}.png", content, "image/png")) for index, content in enumerate(images)]


def probability_by_index(prediction: Any) -> dict[int, float]:
    return {answer["index"]: answer["probability"] for answer in prediction["answers"]}


def wait_for(condition: Callable[[], object]) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.005)


@contextmanager
def running_server(pool: ModelPool, **options: Any) -> Iterator[tuple[str, asyncio.AbstractEventLoop, GracefulServer]]:
    """Run a real server in a thread, so that a test can inspect its event loop."""
    listener = bind("127.0.0.1", 0)
    address, ready, loops = address_of(listener), threading.Event(), []

    def on_ready() -> None:
        loops.append(asyncio.get_running_loop())
        ready.set()

    server = make_server(create_app(pool, **options), pool, on_ready)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert ready.wait(TIMEOUT)
    try:
        yield address, loops[0], server
    finally:
        server.should_exit = True
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "the server did not stop"


class ServerProcess:
    """`vitkit serve` in a process of its own, as a user starts it."""

    def __init__(self, *arguments: str | Path, env: dict[str, str] | None = None):
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments), "--port", "0", "--json", "--device", "cpu"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.startup = json.loads(line)
        self.address: str = self.startup["address"]

    def stop(self, number: int = 15) -> tuple[int, str]:
        """Send a signal, and return the exit code and what the server wrote to stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, errors

    def resident_mb(self) -> int:
        """Return the resident memory in MB."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 10**6

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def connect(address: str, source: str = "") -> socket.socket:
    """Connect to a server, as the client `source`: on Linux, every address that begins with 127 is this machine's."""
    host, port = address.removeprefix("http://").rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=TIMEOUT, source_address=(source, 0))


def exchange(address: str, request: bytes, source: str = "") -> bytes:
    """Send a request whose connection the server closes, and return the response."""
    with connect(address, source) as connection:
        connection.sendall(request)
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    """Return everything until the other side closes."""
    chunks = []
    try:
        while chunk := connection.recv(65536):
            chunks.append(chunk)
    except ConnectionResetError:
        pass
    return b"".join(chunks)
