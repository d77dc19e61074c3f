"""The HTTP server process: bind an address, run until a signal, shut down gracefully."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from vitkit.errors import ConfigError
from vitkit.serve.connections import ConnectionLimiter
from vitkit.serve.limits import Limits
from vitkit.serve.middleware import DRAIN_SECONDS
from vitkit.serve.model_pool import ModelPool
from vitkit.serve.protocol import TimeoutProtocol

SHUTDOWN_NOTICE_SECONDS = 0.5  # seconds in which a stopping server still listens and answers 503
THREAD_EXIT_SECONDS = 5.0  # seconds for threads to end once every request has its response
KEEP_ALIVE_SECONDS = 5  # seconds that an idle connection stays open
MAX_HEAD_BYTES = 16 * 1024  # request line and headers together


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; call this before loading models, so that a port in use is reported at once."""
    flags = f"--host {host} --port {port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise ConfigError(f"{flags}: this machine has no such address ({error})", try_="--host 127.0.0.1") from None
    # asyncio recognises TCP by the protocol number and sets TCP_NODELAY: a small response takes 1 ms instead of 41
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1)  # otherwise two servers that start at once could both bind the port
    except OSError as error:
        listener.close()
        advice = (
            "--host 127.0.0.1, or 0.0.0.0 to listen to other machines"
            if error.errno == errno.EADDRNOTAVAIL
            else "another --port; --port 0 takes any free one"
        )
        raise ConfigError(f"{flags}: {error.strerror or error}", try_=advice) from None
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def beyond_loopback(listener: socket.socket) -> bool:
    return not ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def local_hostnames(listener: socket.socket) -> set[str] | None:
    """Return the host names of a loopback server, or None for one that other machines reach under unknown names."""
    if beyond_loopback(listener):
        return None
    return {"localhost", "127.0.0.1", "::1", str(listener.getsockname()[0])}


def run(app: ASGIApp, pool: ModelPool, listener: socket.socket, on_ready: Callable[[], None]) -> bool:
    """Serve until a signal, and return whether every accepted request got its response."""
    server = make_server(app, pool, on_ready)
    server.run(sockets=[listener])
    return not server.unanswered


@contextmanager
def exit_deadline(all_answered: bool) -> Iterator[None]:
    """End the process if its threads do not end in time: Python cannot stop a thread that decodes or computes."""
    timer = threading.Timer(THREAD_EXIT_SECONDS, os._exit, (0 if all_answered else 1,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def make_server(app: ASGIApp, pool: ModelPool, on_ready: Callable[[], None]) -> GracefulServer:
    limits = pool.limits
    protocol = partial(
        TimeoutProtocol,
        patience=limits.patience,
        seconds=limits.seconds,
        connection_limiter=ConnectionLimiter(total=limits.connections, per_client=limits.client_connections),
    )
    # malformed input is not worth a log line; ResponseMiddleware logs what goes wrong in a request
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    return GracefulServer(
        uvicorn.Config(
            app,
            http=cast(Any, protocol),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_graceful_shutdown=_drain_seconds(limits),
        ),
        pool,
        on_ready,
    )


def _drain_seconds(limits: Limits) -> int:
    """Return the longest time that an accepted request takes, except for bodies that still arrive."""
    return limits.seconds + limits.patience + math.ceil(DRAIN_SECONDS)


class GracefulServer(uvicorn.Server):
    """A uvicorn server that, on a signal, answers the accepted requests and rejects new ones with 503."""

    def __init__(self, config: uvicorn.Config, pool: ModelPool, on_ready: Callable[[], None]):
        super().__init__(config)
        self.pool, self.on_ready, self.unanswered = pool, on_ready, 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start a graceful shutdown at the first signal, and exit at once at the second."""
        if self.should_exit:
            os._exit(128 + sig)  # a normal exit would wait for the threads that compute
        self.pool.admission.draining = True
        self.should_exit = True  # unlike uvicorn's own handler, which raises the signal again at the end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.pool.admission.draining = True
        await asyncio.sleep(SHUTDOWN_NOTICE_SECONDS)
        await super().shutdown(sockets)
        self.unanswered = len(self.server_state.tasks)  # uvicorn cancelled them at the end of the time limit
