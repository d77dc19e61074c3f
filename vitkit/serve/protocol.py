"""uvicorn's HTTP/1.1 protocol with further timeouts, limits on connections, and responses for half-closed connections.

uvicorn closes idle connections. A client that sends its headers byte by byte, or never reads its response, would keep
a connection for ever, and a client that has nothing more to send would get no response.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from vitkit.serve.client import client_of
from vitkit.serve.connections import ConnectionLimiter
from vitkit.serve.half_close import EarlyStatusLine
from vitkit.serve.limits import RETRY, RETRY_AFTER

_BODY = f'{{"error":"Too many connections are open.","try":"{RETRY}"}}'.encode("ascii")
_TOO_MANY_CONNECTIONS = (
    f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {RETRY_AFTER}\r\nconnection: close\r\n"
    f"content-type: application/json\r\ncontent-length: {len(_BODY)}\r\n\r\n"
).encode("ascii") + _BODY
LINGER_SECONDS = 1.0  # until a refused connection is closed, whether or not its client has read why


class TimeoutProtocol(H11Protocol):
    """An HTTP/1.1 connection that closes when its client is too slow.

    patience            seconds for a request's line and headers
    seconds             for a client to read what it is sent
    connection_limiter  shared by all connections of the server
    """

    def __init__(
        self, *args: Any, patience: float, seconds: float, connection_limiter: ConnectionLimiter, **options: Any
    ):
        super().__init__(*args, **options)
        self.patience, self.seconds, self.connection_limiter = patience, seconds, connection_limiter
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._counted_client: str | None = None
        self._refused = self._lingers = False
        self._half_closed = False
        self._early_status_line: EarlyStatusLine | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        client = client_of({"client": self.client})
        if self.connection_limiter.admit(client):
            self._counted_client = client
        else:
            self._refuse()
        self._start_head_timer()

    def _refuse(self) -> None:
        """Send a 503, and close when the client has read it: closing at once may reset what is still on its way."""
        self._refused = True
        self.transport.write(_TOO_MANY_CONNECTIONS)
        if self.connection_limiter.linger():
            self._lingers = True
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._counted_client is not None:
            self.connection_limiter.release(self._counted_client)
            self._counted_client = None
        if self._lingers:
            self.connection_limiter.lingering -= 1
            self._lingers = False
        for timer in (self._head_timer, self._write_timer, self._early_status_line):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._refused and not self.transport.is_closing():
            super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open for the response to a complete request; asyncio closes it otherwise."""
        self._half_closed = True
        if not self._owes_response():
            return False
        if not self.cycle.response_started and self._early_status_line is None:
            self._early_status_line = EarlyStatusLine(self.transport, self.loop)
            self.cycle.transport = self._early_status_line  # type: ignore[assignment]
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()  # goes on with the next request if the client has already sent one
        self._start_head_timer()
        if self._half_closed and not self._owes_response():
            self.transport.close()

    def _owes_response(self) -> bool:
        """Return whether a request has arrived completely and waits for its response."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

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
