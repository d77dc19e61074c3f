"""Requests straight into the application, a pool whose engine waits for a gate, and requests as bytes."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import torch

from tests.serve.servers import PATIENT, TIMEOUT, make_image, make_pool, small_classifier
from vitkit.predict.engines import Engine
from vitkit.serve.app import create_app
from vitkit.serve.limits import Limits
from vitkit.serve.model_pool import ModelPool

JPEG_IMAGE = make_image(1, kind="JPEG")


def run_requests(pool: ModelPool, requests: Callable[[httpx.AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    """Run a coroutine with a client of the application, without a network."""

    async def run() -> Any:
        transport = httpx.ASGITransport(create_app(pool, **options))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=TIMEOUT) as http:
            return await requests(http)

    with pool:
        return asyncio.run(run())


def send(
    method: str, path: str, *, pool: ModelPool | None = None, options: dict[str, Any] | None = None, **request: Any
) -> httpx.Response:
    return run_requests(pool or make_pool(), lambda http: http.request(method, path, **request), **(options or {}))


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.002)


def gated_pool(limits: Limits = PATIENT, batch: int | None = None) -> tuple[ModelPool, threading.Event, list[int]]:
    """Return a pool whose engine waits for the event, and a list that collects its batch sizes."""
    classifier, gate, sizes = small_classifier(), threading.Event(), []
    compute = classifier.engine.logits

    def logits(images: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        assert gate.wait(TIMEOUT)
        return compute(images)

    classifier.engine = Engine(logits, "behind a gate", classifier.engine.batch)
    return ModelPool({"small": classifier}, limits, batch=batch), gate, sizes


def base64_images(*images: bytes, field: str = "images") -> dict[str, list[str]]:
    return {field: [base64.b64encode(content).decode() for content in images]}


def request_head(
    length: int | str, path: str = "/v1/predict", kind: str = "application/json", headers: tuple[str, ...] = ()
) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-type: {kind}", f"content-length: {length}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def request_bytes(*images: bytes) -> bytes:
    """Return a complete request with a form."""
    part = b'--b\r\ncontent-disposition: form-data; name="images"\r\n\r\n'
    body = b"".join(part + content + b"\r\n" for content in images) + b"--b--\r\n"
    return request_head(len(body), kind="multipart/form-data; boundary=b") + body
