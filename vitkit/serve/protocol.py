"""uvicorn's HTTP/1.1 with the time limits it has not: a client that opens a connection and dawdles is let go.

uvicorn closes idle connections, but a client that sends its headers byte by byte, or never reads its answer, would keep
one for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from vitkit.serve.limits import RETRY_AFTER

_FULL = b'{"error":"Too many connections are open.","try":"the same request again, after the seconds of Retry-After"}'
_NO_PLACE = (
    f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {RETRY_AFTER}\r\nconnection: close\r\n"
    f"content-type: application/json\r\ncontent-length: {len(_FULL)}\r\n\r\n"
).encode("ascii") + _FULL


class Patience(H11Protocol):
    """patience: seconds for a request's head, and for a client to take what it is sent; connections: open at a time."""

    def __init__(self, *args: Any, patience: float, seconds: float, most: int, **options: Any):
        super().__init__(*args, **options)
        self.patience, self.seconds, self.most = patience, seconds, most
        self._head: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.write(_NO_PLACE)
            transport.close()
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_head()

    def _expect_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
        self._head = self.loop.call_later(self.patience, self._no_head)

    def _no_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
