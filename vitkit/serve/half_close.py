"""Learn whether a client that has stopped sending still reads.

When a client ends its side of a connection, TCP tells the server the same whether it waits for the response (a
half-close, as of `nc -N`, some proxies and HTTP/1.0 tools) or is gone. Only what the server sends makes the difference:
a closed socket answers it with a reset. Every response begins with the same bytes, so these can be sent before the
response is known, one at a time.
"""

import asyncio
from typing import Any

STATUS_LINE_START = b"HTTP/1.1 "  # h11 answers HTTP/1.0 in the same way
SECONDS_BEFORE_BYTE = (0.05, 0.1, 0.4, 1.5, 3.0, 5.0, 10.0, 10.0, 10.0)  # the second byte finds the reset of the first


class EarlyStatusLine:
    """A transport that sends the first bytes of a response's status line until the response is written.

    A client that is gone resets the connection, and the protocol's connection_lost is called.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self._transport, self._loop = transport, loop
        self._sent = 0
        self._written = False
        self._timer: asyncio.TimerHandle | None = None
        self._schedule()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _schedule(self) -> None:
        if self._sent < len(STATUS_LINE_START):
            self._timer = self._loop.call_later(SECONDS_BEFORE_BYTE[self._sent], self._send_byte)

    def _send_byte(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(STATUS_LINE_START[self._sent : self._sent + 1])
            self._sent += 1
            self._schedule()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def write(self, data: bytes) -> None:
        if self._written:
            self._transport.write(data)
            return
        self.cancel()
        self._written = True
        assert data.startswith(STATUS_LINE_START)
        self._transport.write(data[self._sent :])
