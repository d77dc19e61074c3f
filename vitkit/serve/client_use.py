"""The seconds of decoding that each client has used in about the last minute."""

import math
import time
from collections.abc import Callable, Hashable

MINUTE = 60.0  # seconds; what was used longer ago counts less and less, by a factor of e each minute
MAX_CLIENTS = 4096  # that are remembered; beyond, those who have used least are forgotten


class ClientUse:
    """An exponentially decayed sum for each client; a client that uses a second each second comes to 60."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._used: dict[Hashable, tuple[float, float]] = {}  # the sum, and when it was that

    def of(self, client: Hashable) -> float:
        used, when = self._used.get(client, (0.0, 0.0))
        return used * math.exp((when - self._clock()) / MINUTE)

    def add(self, client: Hashable, seconds: float) -> None:
        self._used[client] = (self.of(client) + seconds, self._clock())
        if len(self._used) > MAX_CLIENTS:
            least = sorted(self._used, key=self.of)[: MAX_CLIENTS // 2]
            for forgotten in least:
                del self._used[forgotten]
