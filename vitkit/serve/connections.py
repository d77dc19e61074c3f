"""The limits on open connections: over the server, and for each client."""

from collections import Counter

MAX_LINGERING = 64  # refused connections that wait until their client has read the reason


class ConnectionLimiter:
    """Counts open connections by client; only the event loop's thread uses it, so it has no lock.

    A client may hold `per_client` connections, and never more than are still free: one client gets at most half of
    them, the next half of the rest, and there is one for a client that comes later.
    """

    def __init__(self, *, total: int, per_client: int):
        self.total, self.per_client = total, per_client
        self.open = self.lingering = 0
        self.by_client: Counter[str] = Counter()

    def admit(self, client: str) -> bool:
        """Count another connection of the client and return True, or return False if it may have no more."""
        if self.by_client.get(client, 0) >= min(self.per_client, self.total - self.open):
            return False
        self.open += 1
        self.by_client[client] += 1
        return True

    def linger(self) -> bool:
        """Count a refused connection that waits and return True, or return False if too many do already."""
        if self.lingering >= MAX_LINGERING:
            return False
        self.lingering += 1
        return True

    def release(self, client: str) -> None:
        self.open -= 1
        self.by_client[client] -= 1
        if not self.by_client[client]:
            del self.by_client[client]
