"""ASGI middleware around every request: access control, security headers, metrics, and a response in every case.

It is outermost, so that it also sees what goes wrong before a route is chosen.
"""

import asyncio
import hmac
import logging
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitkit.serve.body import DEPRECATED_FIELD, FIELD
from vitkit.serve.limits import AdmissionControl, Overloaded, RequestError
from vitkit.serve.metrics import CLIENT_CLOSED_REQUEST, Metrics

log = logging.getLogger(__name__)

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
}
DEPRECATION_HEADERS = {  # for a request with the old field name
    "deprecation": "@1794787200",  # RFC 9745: since 2026-11-16
    "warning": f'299 vitkit "{DEPRECATED_FIELD} is deprecated and will be removed in the next release; send {FIELD}"',
}
DRAIN_SECONDS, DRAIN_BYTES = 5.0, 64_000_000  # for what a rejected client is still sending


def error_response(error: RequestError) -> JSONResponse:
    return JSONResponse(error.content, error.status, headers=error.headers)


class ResponseMiddleware:
    """Counts requests, adds security headers, turns unexpected exceptions into a 500, and drains rejected bodies."""

    def __init__(self, app: ASGIApp, *, routes: Collection[str], metrics: Metrics, admission: AdmissionControl):
        self.app, self.routes, self.metrics, self.admission = app, routes, metrics, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        exchange = _Exchange(scope, receive, send, self.admission)
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"][:80].encode("unicode_escape").decode())
            if not exchange.status:
                response = error_response(RequestError(500, "Something went wrong on the server."))
                await response(scope, receive, exchange.send)
        finally:
            route = scope["path"] if scope["path"] in self.routes else "other"
            self.metrics.requests.labels(route, str(exchange.status or CLIENT_CLOSED_REQUEST)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - started)


class _Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send, admission: AdmissionControl):
        self._scope, self._receive, self._send, self._admission = scope, receive, send, admission
        headers = Headers(scope=scope)
        self.unread = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        self.expects_continue = headers.get("expect", "").lower() == "100-continue"  # no body before it is asked for
        self.api = scope["path"].startswith("/v1/")
        self.status = 0

    async def receive(self) -> Message:
        self.expects_continue = False
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            if self._scope.get("state", {}).get("deprecated_field"):
                headers.update(DEPRECATION_HEADERS)
            headers.setdefault("cache-control", "no-store" if self.api else "no-cache")
            if self.unread or self._admission.draining:
                headers["connection"] = "close"
        elif self.unread and not self.expects_continue and self.status != 408 and not message.get("more_body", False):
            # closing at once would reset the connection before the client reads the response; a 408 has waited already
            await self._send({**message, "more_body": True})
            await self._drain_body()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _drain_body(self) -> None:
        received = 0
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while self.unread and received < DRAIN_BYTES:
                    received += len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass


class AccessMiddleware:
    """Rejects requests without the key, with a foreign host name, or from pages of other sites.

    key      what /v1/… requires, as `Authorization: Bearer KEY` or `X-API-Key: KEY`; None: nothing
    hosts    allow-list of the Host header, against a foreign name that was pointed at this machine (DNS rebinding);
             None: any
    origins  allow-list of other sites whose pages may send images. A browser would send those of any site, and only
             hide the response from it
    """

    def __init__(self, app: ASGIApp, *, key: str | None, hosts: Collection[str] | None, origins: Collection[str] = ()):
        self.app, self.hosts, self.origins = app, hosts, origins
        self.key = None if key is None else key.encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._check(scope, Headers(scope=scope)) if scope["type"] == "http" else None
        if error is None:
            await self.app(scope, receive, send)
            return
        response = error_response(error)
        if error.status == 401:
            response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> RequestError | None:
        if self.hosts is not None and _hostname(headers.get("host", "")) not in self.hosts:
            return RequestError(
                400,
                "The server does not accept this name in the Host header.",
                f"Use http://{sorted(self.hosts)[0]}, or start the server with a key, which allows any name.",
            )
        if (
            "transfer-encoding" in headers and "content-length" in headers
        ):  # request smuggling: a proxy may have used the other one
            return RequestError(
                400, "The request has both Content-Length and Transfer-Encoding.", "Send Content-Length alone."
            )
        if (
            scope["method"] == "POST"
            and headers.get("sec-fetch-site") in ("cross-site", "same-site")
            and not {"*", headers.get("origin")} & set(self.origins)
        ):
            return RequestError(
                403, "Pages of other sites may not send images to this server.", "Start it with --cors ORIGIN."
            )
        if self.key is not None and scope["path"].startswith("/v1/") and not self._has_key(headers):
            return RequestError(
                401, "The API key is missing or wrong.", "Send Authorization: Bearer KEY, or X-API-Key: KEY."
            )
        return None

    def _has_key(self, headers: Headers) -> bool:
        assert self.key is not None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        key = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return hmac.compare_digest(key.encode("utf-8"), self.key)


def _hostname(header: str) -> str:
    """Return the name in a Host header: "localhost:8000" → "localhost", "[::1]:8000" → "::1", malformed → ""."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def count_rejection(metrics: Metrics, error: RequestError) -> None:
    if isinstance(error, Overloaded):
        metrics.rejected.labels(error.reason).inc()
