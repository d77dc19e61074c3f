"""Around every request: who may ask, what the browser may do with the answer, and that there always is one.

Plain ASGI, outermost: it also sees what goes wrong before a route is found.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitkit.serve.limits import Admission, Busy, Refusal
from vitkit.serve.metrics import GONE, Meters

log = logging.getLogger(__name__)

HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
}
LINGER_SECONDS, LINGER_BYTES = 5.0, 64_000_000  # for what a refused client is still sending


def problem(refusal: Refusal) -> JSONResponse:
    return JSONResponse(refusal.content, refusal.status, headers=refusal.headers)


class Shell:
    """Counts requests, adds headers, turns what nobody foresaw into a 500, and hears a refused client out."""

    def __init__(self, app: ASGIApp, *, routes: Collection[str], meters: Meters, admission: Admission):
        self.app, self.routes, self.meters, self.admission = app, routes, meters, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        exchange = _Exchange(scope, receive, send, self.admission)
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"][:80].encode("unicode_escape").decode())
            if not exchange.status:
                await problem(Refusal(500, "Something went wrong on the server."))(scope, receive, exchange.send)
        finally:
            route = scope["path"] if scope["path"] in self.routes else "other"
            self.meters.requests.labels(route, str(exchange.status or GONE)).inc()
            self.meters.seconds.labels(route).observe(time.perf_counter() - began)


class _Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send, admission: Admission):
        self._receive, self._send, self._admission = receive, send, admission
        headers = Headers(scope=scope)
        self.unread = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        self.asks_first = headers.get("expect", "").lower() == "100-continue"  # and so sends nothing unasked
        self.api = scope["path"].startswith("/v1/")
        self.status = 0

    async def receive(self) -> Message:
        self.asks_first = False
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store" if self.api else "no-cache")
            if self.unread or self._admission.draining:
                headers["connection"] = "close"
        elif self.unread and not self.asks_first and self.status != 408 and not message.get("more_body", False):
            # closing at once would reset the connection, and the client would never read why; a slow one has no more
            # time to be given
            await self._send({**message, "more_body": True})
            await self._hear_out()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _hear_out(self) -> None:
        heard = 0
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while self.unread and heard < LINGER_BYTES:
                    heard += len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass


class Gate:
    """Lets in whom the server is meant for.

    key      what /v1/… asks for, as `Authorization: Bearer KEY` or `X-API-Key: KEY`; None: nothing
    hosts    names under which it is reached; another one is a page elsewhere whose name was pointed at this machine
             (DNS rebinding). None: any
    origins  other sites whose pages may send pictures. A browser would send those of any site, and only keep the answer
             from it
    """

    def __init__(self, app: ASGIApp, *, key: str | None, hosts: Collection[str] | None, origins: Collection[str] = ()):
        self.app, self.hosts, self.origins = app, hosts, origins
        self.key = None if key is None else key.encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope, Headers(scope=scope)) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
            return
        response = problem(refusal)
        if refusal.status == 401:
            response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Refusal | None:
        if self.hosts is not None and _host(headers.get("host", "")) not in self.hosts:
            return Refusal(
                400,
                "This server does not answer under that name.",
                f"http://{sorted(self.hosts)[0]}, as it said when it started; with a key, any name will do",
            )
        if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may have believed the other one
            return Refusal(400, "The request tells its length in two ways.", "Content-Length alone")
        if (
            scope["method"] == "POST"
            and headers.get("sec-fetch-site") in ("cross-site", "same-site")
            and not {"*", headers.get("origin")} & set(self.origins)
        ):
            return Refusal(403, "A page of another site may not send pictures here.", "vitkit serve --cors ORIGIN")
        if self.key is not None and scope["path"].startswith("/v1/") and not self._knows_key(headers):
            return Refusal(401, "A key is needed, and this is not it.", "Authorization: Bearer KEY, or X-API-Key: KEY")
        return None

    def _knows_key(self, headers: Headers) -> bool:
        assert self.key is not None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return hmac.compare_digest(given.encode("utf-8"), self.key)


def _host(header: str) -> str:
    """ "localhost:8000" → "localhost", "[::1]:8000" → "::1"; nonsense → ""."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def count_refusal(meters: Meters, refusal: Refusal) -> None:
    if isinstance(refusal, Busy):
        meters.refused.labels(refusal.reason).inc()
