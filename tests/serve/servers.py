"""What the server's tests share: a small model, distinct pictures, a server in this process or another."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

import vitkit
from tests.model.kinds import make
from vitkit.serve.app import create_app
from vitkit.serve.http_server import Server, address_of, bind, make_server
from vitkit.serve.limits import Limits
from vitkit.serve.model_pool import Service

COMMAND = [sys.executable, "-m", "vitkit", "serve"]


def small_classifier(kind: str = "token") -> vitkit.Classifier:
    return vitkit.Classifier(make(kind))


def small_run(folder: Path, kind: str = "token") -> Path:
    vitkit.save(make(kind), folder, format="vitkit")
    return folder


def picture(seed: int, size: tuple[int, int] = (40, 36), kind: str = "PNG") -> bytes:
    """Blocks of colour, different for each seed; noise would look the same to a model."""
    rng = np.random.default_rng(seed)
    blocks = Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8)).resize(size, Image.Resampling.NEAREST)
    file = io.BytesIO()
    blocks.save(file, kind)
    return file.getvalue()


def bomb() -> bytes:
    """A PNG whose header claims 60000 x 60000 pixels."""
    import struct
    import zlib

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1_000_000))) + chunk(b"IEND", b"")


def form(*pictures: bytes) -> list[tuple[str, tuple[str, bytes, str]]]:
    """For httpx's files=."""
    return [("pictures", (f"{place}.png", content, "image/png")) for place, content in enumerate(pictures)]


def best(prediction: Any) -> dict[int, float]:
    return {answer["index"]: answer["probability"] for answer in prediction["answers"]}


@contextmanager
def in_process(service: Service, **options: Any) -> Iterator[tuple[str, asyncio.AbstractEventLoop, Server]]:
    """A real server in a thread: its event loop can be looked at."""
    listener = bind("127.0.0.1", 0)
    address, ready, loops = address_of(listener), threading.Event(), []

    def say() -> None:
        loops.append(asyncio.get_running_loop())
        ready.set()

    server = make_server(create_app(service, **options), service, say)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield address, loops[0], server
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"


class Process:
    """`vitkit serve` as a user starts it."""

    def __init__(self, *words: str | Path, env: dict[str, str] | None = None):
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, words), "--port", "0", "--json", "--device", "cpu"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.told = json.loads(line)
        self.address: str = self.told["address"]

    def stop(self, number: int = 15) -> tuple[int, str]:
        """Its exit code, and what it complained of."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    def resident(self) -> int:
        """MB in memory now."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 10**6

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def connect(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=20)


def heard(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def service(limits: Limits | None = None, *, batch: int | None = None, kind: str = "token", **models: Any) -> Service:
    return Service(models or {"small": small_classifier(kind)}, limits, batch=batch)


def client(made: Service, **options: Any) -> httpx.AsyncClient:
    """Straight into the application, without a network."""
    transport = httpx.ASGITransport(create_app(made, **options))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30)
