"""uvicorn's HTTP/1.1 protocol with further timeouts and a limit on connections, against slow clients.

uvicorn closes idle connections. A client that sends its headers byte by byte, or never reads its response, would keep
a connection for ever.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from vitkit.serve.limits import RETRY, RETRY_AFTER

_BODY = f'{{"error":"Too many connections are open.","try":"{RETRY}"}}'.encode("ascii")
_TOO_MANY_CONNECTIONS = (
    f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {RETRY_AFTER}\r\nconnection: close\r\n"
    f"content-type: application/json\r\ncontent-length: {len(_BODY)}\r\n\r\n"
).encode("ascii") + _BODY


class TimeoutProtocol(H11Protocol):
    """An HTTP/1.1 connection that closes when its client is too slow.

    patience         seconds for a request's line and headers
    seconds          for a client to read what it is sent
    max_connections  open at a time, over the server
    """

    def __init__(self, *args: Any, patience: float, seconds: float, max_connections: int, **options: Any):
        super().__init__(*args, **options)
        self.patience, self.seconds, self.max_connections = patience, seconds, max_connections
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.write(_TOO_MANY_CONNECTIONS)
            transport.close()
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._start_head_timer()

    def _start_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(self.patience, self._close_without_head)

    def _close_without_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
