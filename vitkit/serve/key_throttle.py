"""Throttle clients that guess API keys.

A wrong key costs its client time, and a right one always passes, at once: nobody can lock out others who share an
address, such as the users of one proxy.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

FREE_GUESSES = 5  # wrong keys that are answered at once with 401: a person mistypes, a job restarts with an old key
SECONDS_PER_GUESS = 10.0  # after which one wrong key is forgotten
MAX_GUESSES = FREE_GUESSES + 6  # counted, so that nobody waits longer than a minute
DELAY = 1.0  # seconds until the answer to each further wrong key
MAX_DELAYED = 32  # answers of a client that wait; those beyond come at once, so that they do not use up connections
MAX_CLIENTS = 4096  # remembered; the one longest without a wrong key is forgotten first


@dataclass
class _Client:
    guesses: float = 0.0  # wrong keys, less those forgotten, at the time
    time: float = 0.0
    delayed: int = 0


class KeyThrottle:
    """Counts wrong keys by client; only the event loop's thread uses it, so it has no lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.clients: OrderedDict[str, _Client] = OrderedDict()

    def count_wrong_key(self, client: str) -> int:
        """Count a wrong key, and return the seconds until the client may try another; 0 while it may at once."""
        now = self.clock()
        known = self.clients.setdefault(client, _Client())
        self.clients.move_to_end(client)
        if len(self.clients) > MAX_CLIENTS:
            self.clients.popitem(last=False)
        forgotten = (now - known.time) / SECONDS_PER_GUESS
        known.guesses = min(max(0.0, known.guesses - forgotten) + 1, MAX_GUESSES)
        known.time = now
        excess = known.guesses - FREE_GUESSES
        return math.ceil(excess * SECONDS_PER_GUESS) if excess > 0 else 0

    async def delay(self, client: str) -> None:
        """Wait before the answer to a wrong key, unless many answers of this client already wait."""
        known = self.clients.get(client)
        if known is None or known.delayed >= MAX_DELAYED:
            return
        known.delayed += 1
        try:
            await asyncio.sleep(DELAY)
        finally:
            known.delayed -= 1
