"""The limits of a server, and admission control: everything that a client can make the server hold has a bound."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace

from vitkit.errors import ConfigError, did_you_mean

RETRY_AFTER = 1  # seconds; the server works off a queue of hundreds in a few
RETRY = "Send the request again after the seconds in Retry-After."
MIN_BYTES_PER_SECOND = 64_000  # half a megabit: a phone at the edge of its network is no attack
DEPRECATED_LIMITS = {"pictures": "images"}  # accepted for one release


@dataclass(frozen=True, kw_only=True)
class Limits:
    body: int = 32  # MB of a request
    images: int = 64  # in a request
    megapixels: int = 50  # of an image: what large phones take; a decode thread may need 22 bytes for one pixel
    seconds: int = 30  # from a request's last byte to its response
    queue: int = 256  # images accepted and not answered yet, over all requests
    held: int = 256  # MB of bodies, over all requests
    connections: int = 512  # open at a time
    client_connections: int = 256  # of one client, and never more than are still free (connections.py)
    patience: int = 10  # seconds for the head of a request; for its body too, plus one per MIN_BYTES_PER_SECOND bytes

    def __post_init__(self) -> None:
        for field in fields(self):
            if (value := getattr(self, field.name)) < 1:
                raise ConfigError(f"--limit {field.name}={value}: a limit must be 1 or more")
        if self.images > self.queue:
            raise ConfigError(
                f"--limit images={self.images} queue={self.queue}: a request of {self.images} images would never fit "
                "into the queue",
                try_=f"--limit queue={self.images}, or more",
            )
        if self.body > self.held:
            raise ConfigError(
                f"--limit body={self.body} held={self.held}: a request of {self.body} MB would never fit into memory",
                try_=f"--limit held={self.body}, or more",
            )

    @property
    def body_bytes(self) -> int:
        return self.body * 1_000_000

    @property
    def held_bytes(self) -> int:
        return self.held * 1_000_000

    @property
    def pixels(self) -> int:
        return self.megapixels * 1_000_000


def parse_limits(assignments: Iterable[str]) -> Limits:
    """Return the default limits with changes such as "queue=64" or "seconds=5"."""
    known = [field.name for field in fields(Limits)]
    changes: dict[str, int] = {}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        name = DEPRECATED_LIMITS.get(name, name)
        if name not in known:
            raise ConfigError(
                f"--limit {assignment}: there is no limit {name!r}{did_you_mean(name, known)}", limits=", ".join(known)
            )
        if not (value.isascii() and value.isdecimal() and len(value) < 10):
            raise ConfigError(
                f"--limit {assignment}: the value must be a whole number", try_=f"{name}={getattr(Limits(), name)}"
            )
        changes[name] = int(value)
    return replace(Limits(), **changes)


class RequestError(Exception):
    """An error response: a status, what is wrong in a sentence, and what to do."""

    def __init__(self, status: int, error: str, try_: str | None = None, *, retry_after: int | None = None):
        super().__init__(error)
        self.status, self.error, self.try_, self.retry_after = status, error, try_, retry_after

    @property
    def content(self) -> dict[str, str | None]:
        return {"error": self.error, "try": self.try_}

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


class Overloaded(RequestError):
    """Back-pressure: a 503 for a request that the server may accept a moment later."""

    def __init__(self, reason: str, error: str):
        super().__init__(503, error, RETRY, retry_after=RETRY_AFTER)
        self.reason = reason


class AdmissionControl:
    """Counts the images and bytes of accepted requests; only the event loop's thread uses it, so it has no lock."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.images = self.bytes = 0
        self.draining = False

    def check_capacity(self) -> None:
        """Raise Overloaded if there is no use in reading another body."""
        if self.draining:
            raise Overloaded("draining", "The server is shutting down and accepts no new requests.")
        if self.images >= self.limits.queue:
            raise self._queue_full()

    def admit(self, images: int) -> AbstractContextManager[None]:
        """Count all images of a request as queued until the context ends, or raise Overloaded and count none."""
        if self.images + images > self.limits.queue:
            raise self._queue_full()
        self.images += images
        return self._release_images(images)

    @contextmanager
    def _release_images(self, images: int) -> Iterator[None]:
        try:
            yield
        finally:
            self.images -= images

    def hold_bytes(self, count: int) -> None:
        """Count more bytes of a body as held, until release_bytes."""
        if self.bytes + count > self.limits.held_bytes:
            raise Overloaded("memory", "The server already holds as many bytes of other requests as it may.")
        self.bytes += count

    def release_bytes(self, count: int) -> None:
        self.bytes -= count

    def _queue_full(self) -> Overloaded:
        return Overloaded(
            "queue", f"The server is busy: {self.images} images are in the queue, of {self.limits.queue} at most."
        )
