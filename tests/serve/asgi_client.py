"""Questions straight into the application, a service that answers when it is let, and the head of a request by hand."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import torch

from tests.serve.small import client, picture, service, small_classifier
from vitkit.predict.engine import Engine
from vitkit.serve.limits import Limits
from vitkit.serve.model_pool import Service

JPEG = picture(1, kind="JPEG")


def asked(made: Service, scene: Callable[[httpx.AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with client(made, **options) as http:
            return await scene(http)

    with made:
        return asyncio.run(run())


def once(
    method: str, path: str, *, made: Service | None = None, options: dict[str, Any] | None = None, **request: Any
) -> httpx.Response:
    return asked(made or service(), lambda http: http.request(method, path, **request), **(options or {}))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def slow_service(limits: Limits | None = None, batch: int | None = None) -> tuple[Service, threading.Event, list[int]]:
    """One whose engine waits until it is let, and notes the sizes of its batches."""
    classifier, gate, sizes = small_classifier(), threading.Event(), []
    quick = classifier.engine.logits

    def logits(images: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        assert gate.wait(20)
        return quick(images)

    classifier.engine = Engine(logits, "when it is let", classifier.engine.batch)
    return Service({"small": classifier}, limits, batch=batch), gate, sizes


def in_base64(*pictures: bytes) -> dict[str, list[str]]:
    return {"pictures": [base64.b64encode(content).decode() for content in pictures]}


def head(length: int | str, path: str = "/v1/predict", kind: str = "application/json") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
    ).encode()
