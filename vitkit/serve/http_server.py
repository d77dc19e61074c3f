"""The server as a process: an address, a start that says what is served, and an end that leaves nobody unanswered."""

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
from vitkit.serve.guard import LINGER_SECONDS
from vitkit.serve.limits import Limits
from vitkit.serve.model_pool import Service
from vitkit.serve.protocol import Patience

NOTICE = 0.5  # seconds in which a stopping server still listens, and says that it stops
FAREWELL = 5.0  # seconds for threads to end, once every request has its answer
KEEP_ALIVE = 5  # seconds that an idle connection stays open
HEAD = 16 * 1024  # bytes of a request's line and headers


def bind(host: str, port: int) -> socket.socket:
    """Taken before models are loaded: who asked for a port that is in use hears of it at once."""
    where = f"--host {host} --port {port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise ConfigError(f"{where}: there is no such address here ({error})", try_="--host 127.0.0.1") from None
    # by its protocol, asyncio knows TCP and sends small answers at once (TCP_NODELAY): 1 ms instead of 41
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1)  # two that start at once would otherwise both be let have it
    except OSError as error:
        listener.close()
        way_out = (
            "--host 127.0.0.1, or 0.0.0.0 to be open to others"
            if error.errno == errno.EADDRNOTAVAIL
            else "another --port; 0 takes any that is free"
        )
        raise ConfigError(f"{where}: {error.strerror or error}", try_=way_out) from None
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def beyond_loopback(listener: socket.socket) -> bool:
    return not ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def own_names(listener: socket.socket) -> set[str] | None:
    """Under which a server of this machine alone is reached; one for others goes by names that it cannot know."""
    if beyond_loopback(listener):
        return None
    return {"localhost", "127.0.0.1", "::1", str(listener.getsockname()[0])}


def run(app: ASGIApp, service: Service, listener: socket.socket, say: Callable[[], None]) -> bool:
    """Until a signal; whether every request that was taken in was answered. `say` is called once it listens."""
    server = make_server(app, service, say)
    server.run(sockets=[listener])
    return not server.unanswered


@contextmanager
def leaving(whole: bool) -> Iterator[None]:
    """While threads end. One that is deep in a picture or a model cannot be stopped, and Python would wait for it for
    ever: after a while the process goes without it."""
    timer = threading.Timer(FAREWELL, os._exit, (0 if whole else 1,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def make_server(app: ASGIApp, service: Service, say: Callable[[], None]) -> Server:
    limits = service.limits
    protocol = partial(Patience, patience=limits.patience, seconds=limits.seconds, most=limits.connections)
    # clients that send nonsense are no news; what goes wrong in a request, the Shell tells
    for name in ("uvicorn.error", "tifffile"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return Server(
        uvicorn.Config(
            app,
            http=cast(Any, protocol),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            h11_max_incomplete_event_size=HEAD,
            timeout_graceful_shutdown=_drain_seconds(limits),
        ),
        service,
        say,
    )


def _drain_seconds(limits: Limits) -> int:
    """Nothing that was taken in takes longer, but for bodies that are still dribbling in."""
    return limits.seconds + limits.patience + math.ceil(LINGER_SECONDS)


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, say: Callable[[], None]):
        super().__init__(config)
        self.service, self.say, self.unanswered = service, say, 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.say()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks, the second does not. Neither is raised again at the end: the end is a good one."""
        if self.should_exit:
            os._exit(128 + sig)  # threads that compute would be waited for otherwise
        self.service.admission.draining = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.service.admission.draining = True
        await asyncio.sleep(NOTICE)
        await super().shutdown(sockets)
        self.unanswered = len(self.server_state.tasks)  # called off just now, at the end of the time limit
