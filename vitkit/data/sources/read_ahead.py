"""Images of a remote store whose requests are under way before they are read: bounded, in the order of their use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from vitkit.storage.remote import in_background
from vitkit.storage.repeats import most_requests

if TYPE_CHECKING:
    from vitkit.data.sources.dataset import ImageStore, StoredImage

Fetch = Callable[[Sequence[int]], "Sequence[StoredImage | OSError | ValueError]"]


class ReadAhead:
    """A store that reads each of some rows once, from requests that began before; others it passes on.

    A request may be for several rows. As many requests are under way, or waiting to be read, as the setting allows.
    """

    def __init__(self, store: ImageStore, requests: Sequence[Sequence[int]], fetch: Fetch) -> None:
        self.store, self.fetch = store, fetch
        self.waiting = deque(requests)
        self.started: dict[int, Future[dict[int, StoredImage | OSError | ValueError]]] = {}
        self.unread: dict[Future[dict[int, StoredImage | OSError | ValueError]], int] = {}
        self.most = most_requests()
        self._start()

    def read(self, row: int) -> StoredImage:
        if row not in self.started and any(row in some for some in self.waiting):
            self._start(until=row)
        future = self.started.pop(row, None)
        if future is None:
            return self.store.read(row)
        content = future.result()[row]
        self.unread[future] -= 1
        if not self.unread[future]:
            del self.unread[future]
        self._start()
        if isinstance(content, OSError | ValueError):
            raise content
        return content

    def _start(self, until: int | None = None) -> None:
        """Start requests up to the limit, or however many it takes to start that of a row."""
        while self.waiting and (len(self.unread) < self.most or (until is not None and until not in self.started)):
            rows = self.waiting.popleft()
            future = in_background(self._fetch, rows)
            self.unread[future] = len(rows)
            self.started.update(dict.fromkeys(rows, future))

    def _fetch(self, rows: Sequence[int]) -> dict[int, StoredImage | OSError | ValueError]:
        try:
            return dict(zip(rows, self.fetch(rows), strict=True))
        except (OSError, ValueError) as error:
            return dict.fromkeys(rows, error)
