"""ASGI middleware around every request: access control, security headers, metrics, and a response in every case.

It is outermost, so that it also sees what goes wrong before a route is chosen.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitkit.serve.body import DEPRECATED_FIELD, FIELD
from vitkit.serve.client import client_of
from vitkit.serve.host_header import Host, is_same_origin, parse_host
from vitkit.serve.key_throttle import KeyThrottle
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
    """Counts requests, adds security headers, turns unexpected exceptions into a 500, and drains rejected bodies.

    HEAD is answered as GET without the body, for every route: monitors and `curl -I` ask so.
    """

    def __init__(self, app: ASGIApp, *, routes: Collection[str], metrics: Metrics, admission: AdmissionControl):
        self.app, self.routes, self.metrics, self.admission = app, routes, metrics, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        exchange = _Exchange(scope, receive, send, self.admission)
        try:
            routed = {**scope, "method": "GET"} if exchange.head_only else scope
            await self.app(routed, exchange.receive, exchange.send)
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
        self.head_only = scope["method"] == "HEAD"
        self.status = 0

    async def receive(self) -> Message:
        self.expects_continue = False
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.unread = False
        return message

    async def send(self, message: Message) -> None:
        if self.head_only and message["type"] == "http.response.body":
            message = {**message, "body": b""}  # Content-Length stays that of GET
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
    """Rejects requests without the key, with a foreign or malformed host name, or from pages of other sites.

    key      what /v1/… and /metrics require, as `Authorization: Bearer KEY` or `X-API-Key: KEY`; None: nothing
    hosts    allow-list of the Host header, against a foreign name that was pointed at this machine (DNS rebinding);
             None: any
    origins  allow-list of other sites whose pages may send images. A browser would send those of any site, and only
             hide the response from it
    """

    def __init__(self, app: ASGIApp, *, key: str | None, hosts: Collection[str] | None, origins: Collection[str] = ()):
        self.app, self.hosts, self.origins = app, hosts, origins
        self.key_digest = None if key is None else _digest(key)
        self.key_throttle = KeyThrottle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._check(scope, Headers(scope=scope)) if scope["type"] == "http" else None
        if error is None:
            await self.app(scope, receive, send)
            return
        response = error_response(error)
        if error.status == 401:
            response.headers["www-authenticate"] = "Bearer"
        if error.status == 429:
            response.headers["connection"] = "close"  # the next guess costs a new connection
            await self.key_throttle.delay(client_of(scope))
        await response(scope, receive, send)

    def _check(self, scope: Scope, headers: Headers) -> RequestError | None:
        return (
            self._check_host(headers)
            or _check_length(headers)
            or self._check_site(scope, headers)
            or self._check_key(scope, headers)
        )

    def _check_host(self, headers: Headers) -> RequestError | None:
        if "host" not in headers:  # only HTTP/1.0 may leave it out, and no browser does: it may be a health check
            return None
        host = _host_of(headers)
        if host is None:
            return RequestError(400, "The Host header is malformed.", "Send Host: NAME or Host: NAME:PORT, once.")
        if self.hosts is not None and host.name not in self.hosts:
            return RequestError(
                400,
                "The server does not accept this name in the Host header.",
                f"Use http://{sorted(self.hosts)[0]}, or start the server with a key, which allows any name.",
            )
        return None

    def _check_site(self, scope: Scope, headers: Headers) -> RequestError | None:
        if scope["method"] in ("GET", "HEAD", "OPTIONS") or self._may_post(headers):
            return None
        return RequestError(
            403, "Pages of other sites may not send images to this server.", "Start it with --cors ORIGIN."
        )

    def _may_post(self, headers: Headers) -> bool:
        """Return whether the request comes from the page of this server, an allowed site, or no page at all."""
        origins = headers.getlist("origin")
        if "*" in self.origins or (len(origins) == 1 and origins[0] in self.origins):
            return True
        if (site := headers.get("sec-fetch-site")) is not None:  # the browser says so; a page cannot set this header
            return site in ("same-origin", "none")
        if not origins:  # no browser
            return True
        host = _host_of(headers)
        return len(origins) == 1 and host is not None and is_same_origin(origins[0], host)

    def _check_key(self, scope: Scope, headers: Headers) -> RequestError | None:
        if self.key_digest is None or not (scope["path"].startswith("/v1/") or scope["path"] == "/metrics"):
            return None
        key = _presented_key(headers)
        if hmac.compare_digest(_digest(key), self.key_digest):
            return None
        advice = "Send Authorization: Bearer KEY, or X-API-Key: KEY."
        wait = self.key_throttle.count_wrong_key(client_of(scope)) if key else 0
        if wait:
            return RequestError(429, "Too many wrong API keys came from this address.", advice, retry_after=wait)
        return RequestError(401, "The API key is missing or wrong.", advice)


def _check_length(headers: Headers) -> RequestError | None:
    if "transfer-encoding" in headers and "content-length" in headers:
        # request smuggling: a proxy may have used the other one
        return RequestError(
            400, "The request has both Content-Length and Transfer-Encoding.", "Send Content-Length alone."
        )
    return None


def _host_of(headers: Headers) -> Host | None:
    hosts = headers.getlist("host")
    return parse_host(hosts[0]) if len(hosts) == 1 else None


def _presented_key(headers: Headers) -> str:
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _digest(key: str) -> bytes:
    """Return bytes of one length for any key, so that comparing them tells nothing about the length either."""
    return hashlib.sha256(key.encode("utf-8")).digest()


def count_rejection(metrics: Metrics, error: RequestError) -> None:
    if isinstance(error, Overloaded):
        metrics.rejected.labels(error.reason).inc()
