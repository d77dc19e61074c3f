"""Clients of a server, well-behaved and not, that check every answer; for serve_mixed_load.py.

They write plain HTTP over asyncio's connections, because an HTTP library would not send most of this.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import socket
import struct
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mixed_images import Sample

KEY = "the-key-of-the-load-test"
TOLERANCE = 8 * float(np.finfo(np.float32).eps) * 10_000**0.5  # sums of up to 10,000 products in another order
TIMEOUT = 120  # seconds for a response; the server has 30
ANSWERED_OR_BUSY = (200, 503, 504)  # of valid requests; only a few may be busy
MAX_PROBLEMS = 50  # that are described
MANY = 300  # connections at once; the server grants one client 256


@dataclass
class Response:
    status: int = 0  # 0: the connection ended without one
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def connection(port: int, source: str) -> AsyncIterator[Stream]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_response(reader: asyncio.StreamReader, *, head_only: bool = False) -> Response:
    """Read one response, or return status 0 if the server closes or resets the connection before it begins."""
    try:
        line = await reader.readline()
        if not line:
            return Response()
        response = Response(int(line.split()[1]))
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            response.headers[name.lower()] = value.strip()
        if not head_only:
            response.body = await reader.readexactly(int(response.headers.get("content-length", 0)))
        return response
    except (OSError, asyncio.IncompleteReadError):
        return Response()


async def ask(port: int, source: str, request: bytes, *, half_close: bool = False) -> Response:
    """Send one request over a connection of its own."""
    async with asyncio.timeout(TIMEOUT), connection(port, source) as (reader, writer):
        with contextlib.suppress(OSError):  # a refused connection is closed while we send; its response comes first
            writer.write(request)
            await writer.drain()
            if half_close:
                writer.write_eof()
        return await read_response(reader, head_only=request.startswith(b"HEAD "))


def get(path: str, *headers: str, method: str = "GET", key: str | None = KEY, version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "connection: close", *headers]
    lines += [] if any(header.startswith("host:") for header in headers) else ["host: localhost"]
    lines += [] if key is None else [f"authorization: Bearer {key}"]
    return "\r\n".join([*lines, "", ""]).encode()


def post(path: str, images: Sequence[bytes], form: str, *headers: str, version: str = "1.1") -> bytes:
    """Return a request with images in a form, in JSON or, if it is one, as it is."""
    if form == "json":
        kind, body = "application/json", json.dumps({"images": [base64.b64encode(i).decode() for i in images]}).encode()
    elif form == "raw" and len(images) == 1:
        kind, body = "application/octet-stream", images[0]
    else:
        part = b'--boundary\r\ncontent-disposition: form-data; name="images"; filename="x"\r\n\r\n'
        kind = "multipart/form-data; boundary=boundary"
        body = b"".join(part + image + b"\r\n" for image in images) + b"--boundary--\r\n"
    lines = [
        f"POST {path} HTTP/{version}",
        "host: localhost",
        f"x-api-key: {KEY}",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Load:
    """What the clients share: the images, the counts and the problems."""

    def __init__(self, port: int, samples: dict[str, list[Sample]], pace: float):
        self.port, self.samples, self.pace = port, samples, pace
        self.until = 0.0
        self.statuses: dict[str, Counter[int]] = defaultdict(Counter)
        self.problems: Counter[str] = Counter()
        self.answered = self.refused = self.wrong = 0
        self.seconds: list[float] = []

    def problem(self, kind: str, text: str) -> None:
        if len(self.problems) < MAX_PROBLEMS or f"{kind}: {text}" in self.problems:
            self.problems[f"{kind}: {text}"] += 1

    def problem_lines(self) -> list[str]:
        return [f"{count} x {text}" if count > 1 else text for text, count in self.problems.items()]

    async def repeat(self, client: Client, number: int) -> None:
        """Let a client act again and again, with random pauses, until the time is over."""
        rng = np.random.default_rng([CLIENTS.index(client), number])
        source = f"127.0.{CLIENTS.index(client) + 1}.{number + 1}"
        while time.monotonic() < self.until:
            await asyncio.sleep(min(float(rng.exponential(client.pause / self.pace)), 10 * client.pause))
            try:
                await client.act(self, source, rng)
            except Exception as error:
                self.problem(client.kind, f"{type(error).__name__}: {error}"[:300])

    def expect(self, kind: str, response: Response, *allowed: int) -> bool:
        """Count a response, and return whether it may be; 0 stands for a connection that ends without one."""
        self.statuses[kind][response.status] += 1
        if response.status in allowed:
            return True
        self.problem(kind, f"status {response.status} {response.body[:200].decode(errors='replace')}")
        return False

    def pick(self, rng: np.random.Generator, kind: str = "valid", count: int = 1) -> list[Sample]:
        samples = self.samples[kind]
        return [samples[index] for index in rng.integers(len(samples), size=count)]

    def check(self, kind: str, samples: Sequence[Sample], response: Response) -> None:
        """Compare every answer of a response with Classifier's."""
        rows = json.loads(response.body)["predictions"]
        if len(rows) != len(samples):
            self.problem(kind, f"{len(rows)} answers for {len(samples)} images")
        for sample, row in zip(samples, rows, strict=False):
            if row["error"] is not None:
                self.refused += 1
                if sample.valid:
                    self.problem(kind, f"{sample.name} was refused: {row['error']}")
                continue
            self.answered += 1
            expected = sample.probabilities
            found = np.zeros(0 if expected is None else len(expected))
            for answer in row["answers"]:
                if answer["index"] < len(found):
                    found[answer["index"]] = answer["probability"]
            if expected is None or np.abs(found - expected).max() > TOLERANCE:
                self.wrong += 1
                self.problem("wrong", sample.name)

    def check_embeddings(self, kind: str, samples: Sequence[Sample], response: Response) -> None:
        rows = json.loads(response.body)["embeddings"]
        for sample, row in zip(samples, rows, strict=True):
            self.answered += 1
            expected = sample.embedding
            assert expected is not None
            if np.abs(np.array(row["vector"]) - expected).max() > TOLERANCE * max(1.0, np.abs(expected).max()):
                self.wrong += 1
                self.problem("wrong", f"embedding of {sample.name}")

    async def post_valid(
        self, source: str, samples: Sequence[Sample], kind: str, *, form: str = "form", half_close: bool = False
    ) -> None:
        request = post("/v1/predict?top=1000", [s.content for s in samples], form, "connection: close")
        started = time.monotonic()
        response = await ask(self.port, source, request, half_close=half_close)
        if self.expect(kind, response, *ANSWERED_OR_BUSY) and response.status == 200:
            self.seconds.append(time.monotonic() - started)
            self.check(kind, samples, response)


async def keep_alive(load: Load, source: str, rng: np.random.Generator) -> None:
    """Send some requests over one connection."""
    async with asyncio.timeout(10 * TIMEOUT), connection(load.port, source) as (reader, writer):
        for _ in range(rng.integers(2, 8)):
            samples, embed = load.pick(rng, count=int(rng.integers(1, 4))), rng.random() < 0.2
            path = "/v1/embed" if embed else "/v1/predict?top=1000"
            started = time.monotonic()
            writer.write(post(path, [s.content for s in samples], str(rng.choice(["form", "json", "raw"]))))
            await writer.drain()
            response = await read_response(reader)
            if not load.expect("valid, keep-alive", response, *ANSWERED_OR_BUSY) or response.status != 200:
                return
            load.seconds.append(time.monotonic() - started)
            check = load.check_embeddings if embed else load.check
            check("valid, keep-alive", samples, response)
            await asyncio.sleep(float(rng.exponential(0.5)) % 2)


async def one_request(load: Load, source: str, rng: np.random.Generator) -> None:
    form = str(rng.choice(["form", "json", "raw"]))
    await load.post_valid(source, load.pick(rng, count=int(rng.integers(1, 3))), "valid, one request", form=form)


async def http_1_0(load: Load, source: str, rng: np.random.Generator) -> None:
    samples = load.pick(rng)
    request = post("/v1/predict?top=1000", [samples[0].content], "raw", version="1.0")
    response = await ask(load.port, source, request, half_close=bool(rng.random() < 0.5))
    if load.expect("valid, HTTP/1.0", response, *ANSWERED_OR_BUSY) and response.status == 200:
        load.check("valid, HTTP/1.0", samples, response)


async def half_close(load: Load, source: str, rng: np.random.Generator) -> None:
    await load.post_valid(source, load.pick(rng), "valid, half-close", half_close=True)


async def damaged(load: Load, source: str, rng: np.random.Generator) -> None:
    """Send damaged images between valid ones: each has its own answer or its own error."""
    good = load.pick(rng, count=2)
    samples = [good[0], *load.pick(rng, "damaged", int(rng.integers(1, 6))), good[1]]
    await load.post_valid(source, samples, "valid, with damaged ones")
    alone = load.pick(rng, "damaged")
    response = await ask(
        load.port, source, post("/v1/predict?top=1000", [alone[0].content], "raw", "connection: close")
    )
    if load.expect("damaged", response, 200, 422, 503, 504) and response.status == 200:
        load.check("damaged", alone, response)


async def hostile(load: Load, source: str, rng: np.random.Generator) -> None:
    samples = load.pick(rng, "hostile")
    copies = [samples[0]] * int(rng.choice([1, 1, 2, 8]))
    request = post("/v1/predict?top=1000", [s.content for s in copies], "form", "connection: close")
    response = await ask(load.port, source, request)
    if load.expect("hostile", response, 200, 413, 422, 429, 503, 504) and response.status == 200:
        load.check("hostile", copies, response)


async def slow(load: Load, source: str, rng: np.random.Generator) -> None:
    """Send a request in pieces over seconds, which the server waits for, or stop within it, which it does not."""
    samples = load.pick(rng)
    request = post("/v1/predict?top=1000", [samples[0].content], "form", "connection: close")
    mode = rng.integers(3)
    async with asyncio.timeout(TIMEOUT), connection(load.port, source) as (reader, writer):
        if mode == 0:
            head = request.index(b"\r\n\r\n")
            cuts = sorted({0, 20, head, len(request), *map(int, rng.integers(head, len(request), size=8))})
            for first, last in itertools.pairwise(cuts):
                writer.write(request[first:last])
                await writer.drain()
                await asyncio.sleep(0.25)
            response = await read_response(reader)
            if load.expect("valid, slow", response, *ANSWERED_OR_BUSY) and response.status == 200:
                load.check("valid, slow", samples, response)
            return
        writer.write(request[:40] if mode == 1 else request[: len(request) // 2])
        await writer.drain()
        load.expect("stops in its head" if mode == 1 else "stops in its body", await read_response(reader), 0, 408, 503)


async def abort(load: Load, source: str, rng: np.random.Generator) -> None:
    """Disconnect at some point: within the request, after it, or after a half-close; politely or with a reset."""
    samples = load.pick(rng, count=int(rng.integers(1, 6)))
    request = post("/v1/predict?top=1000", [s.content for s in samples], "form")
    async with connection(load.port, source) as (_, writer):
        writer.write(request[: int(rng.choice([0, 30, len(request) // 2, len(request), len(request)]))])
        with contextlib.suppress(OSError):
            async with asyncio.timeout(TIMEOUT):
                await writer.drain()
            if rng.random() < 0.3:
                writer.write_eof()
            await asyncio.sleep(float(rng.choice([0, 0.02, 0.3])))
        if rng.random() < 0.3:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
    load.statuses["aborted"][0] += 1


async def many_connections(load: Load, source: str, rng: np.random.Generator) -> None:
    """Open hundreds of connections that send a few bytes, hold them for a while, and count the refused ones."""
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(MANY):
            reader, writer = await stack.enter_async_context(connection(load.port, source))
            writer.write(b"GET / HTTP/1.1\r\n")
            readers.append(reader)
        await asyncio.sleep(2)
        tasks = [asyncio.create_task(read_response(reader)) for reader in readers]
        refused, granted = await asyncio.wait(tasks, timeout=0.5)  # the server says nothing to those it grants
        for task in granted:
            task.cancel()
        await asyncio.gather(*granted, return_exceptions=True)
        for task in refused:
            load.expect("many connections", task.result(), 503, 0)
        if not refused:
            load.problem("many connections", f"the server granted one client all of {MANY}")


async def guess_keys(load: Load, source: str, rng: np.random.Generator) -> None:
    for _ in range(rng.integers(1, 8)):
        wrong = get("/v1/models", key=f"guess-{rng.integers(10**9)}")
        load.expect("wrong key", await ask(load.port, source, wrong), 401, 429)
    load.expect("no key", await ask(load.port, source, get("/v1/models", key=None)), 401)
    load.expect("right key", await ask(load.port, source, get("/v1/models")), 200)


MONITORED: list[tuple[bytes, int]] = [
    (get("/healthz", key=None), 200),
    (get("/readyz", key=None), 200),
    (get("/", key=None), 200),
    (get("/", key=None, method="HEAD"), 200),
    (get("/healthz", key=None, method="HEAD"), 200),
    (get("/openapi.json", key=None), 200),
    (get("/metrics"), 200),
    (get("/metrics", key=None), 401),
    (get("/nothing", key=None), 404),
    (get("/v1/predict"), 405),
    (get("/healthz", "host: evil.example@localhost"), 400),
    (post("/v1/predict", [b"x"], "raw", "origin: https://evil.example", "connection: close"), 403),
    (post("/v1/predict?top=0", [b"x"], "raw", "connection: close"), 422),
    (b"\x16\x03\x01 no HTTP\r\n\r\n", 400),
]


async def monitor(load: Load, source: str, rng: np.random.Generator) -> None:
    request, status = MONITORED[rng.integers(len(MONITORED))]
    load.expect("monitor", await ask(load.port, source, request), status)


@dataclass(frozen=True)
class Client:
    kind: str
    act: Callable[[Load, str, np.random.Generator], Coroutine[Any, Any, None]]
    count: int  # at a time
    pause: float  # seconds between two acts, on average


CLIENTS = [
    Client("keep-alive", keep_alive, 3, 2.0),
    Client("one request", one_request, 2, 1.0),
    Client("HTTP/1.0", http_1_0, 1, 3.0),
    Client("half-close", half_close, 1, 2.0),
    Client("damaged", damaged, 2, 2.0),
    Client("hostile", hostile, 1, 8.0),
    Client("slow", slow, 3, 2.0),
    Client("abort", abort, 2, 1.0),
    Client("many connections", many_connections, 1, 20.0),
    Client("guess keys", guess_keys, 1, 4.0),
    Client("monitor", monitor, 1, 0.7),
]
