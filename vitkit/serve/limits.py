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
    megapixels: int = 50  # of an image: what large phones take; a decode process may need 22 bytes for one pixel
    request_megapixels: int = 500  # of all images of a request: 32 MB of photos have about 250
    windows: int = 256  # of a large image, for a segmentation model; each is an input of the model
    decode_seconds: int = 10  # of processor time to decode an image; the slowest of 50 megapixels take about 4
    client_seconds: int = 30  # of decoding that a client uses in a minute, beyond which all others come first
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

        if self.megapixels > self.request_megapixels:
            raise ConfigError(
                f"--limit megapixels={self.megapixels} request_megapixels={self.request_megapixels}: a request could "
                f"not hold an image of {self.megapixels} megapixels",
                try_=f"--limit request_megapixels={self.megapixels}, or more",
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

    @property
    def request_pixels(self) -> int:
        return self.request_megapixels * 1_000_000


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
    """Counts the images and bytes of accepted requests; only the event loop's thread uses it, so it has no lock.

    What one client may hold depends on what is still free (dynamic thresholds, Choudhury & Hahne 1998): a single client
    can fill most of the server, but none can fill it so far that a request of a few images from another address is
    refused. Beside a client that takes all it can get, a request of 43 images is accepted and one of 64 is not.
    """

    def __init__(self, limits: Limits):
        self.limits = limits
        self._images, self._bytes = Share(limits.queue), Share(limits.held_bytes)
        self.draining = False

    @property
    def images(self) -> int:
        return self._images.total

    @property
    def bytes(self) -> int:
        return self._bytes.total

    def check_capacity(self, client: str) -> None:
        """Raise Overloaded if there is no use in reading another body."""
        if self.draining:
            raise Overloaded("draining", "The server is shutting down and accepts no new requests.")
        if not self._images.fits(client, 1):
            raise self._queue_full(client)

    def admit(self, images: int, client: str, request: int = 0) -> AbstractContextManager[None]:
        """Count images of a request as queued until the context ends, or raise Overloaded and count none of them.

        request: the images of the same request that are counted already.
        """
        if not self._images.fits(client, images, request):
            raise self._queue_full(client)
        self._images.add(client, images)
        return self._release_images(images, client)

    @contextmanager
    def _release_images(self, images: int, client: str) -> Iterator[None]:
        try:
            yield
        finally:
            self._images.add(client, -images)

    def hold_bytes(self, count: int, client: str, request: int) -> None:
        """Count more bytes of a body as held, until release_bytes; `request`: the bytes that it holds already."""
        if not self._bytes.fits(client, count, request):
            whose = "your" if self._bytes.held(client) > request else "other"
            raise Overloaded("memory", f"The server already holds as many bytes of {whose} requests as it may.")
        self._bytes.add(client, count)

    def release_bytes(self, count: int, client: str) -> None:
        self._bytes.add(client, -count)

    def _queue_full(self, client: str) -> Overloaded:
        mine = self._images.held(client)
        return Overloaded(
            "queue",
            f"The server is busy: {self.images} images are in the queue, of {self.limits.queue} at most; "
            f"{mine} of them are yours.",
        )


class Share:
    """An amount that clients share: each may hold SHARE times as much as would still be free, and a request the rest.

    With one client, that is two thirds of everything; with eight that take all they can get, each has 2/17, and 1/17
    stays free for the next. A request may hold what its client does not: so one that grows large stops, and leaves room
    for the small ones of others with the same address. Many small ones can still use up what an address may hold.
    """

    SHARE = 2

    def __init__(self, capacity: int):
        self.capacity, self.total = capacity, 0
        self._held: dict[str, int] = {}

    def held(self, client: str) -> int:
        return self._held.get(client, 0)

    def fits(self, client: str, count: int, request: int = 0) -> bool:
        """Return whether a request may hold `count` more than the `request` that it holds already."""
        if self.total == request:  # nobody else holds anything: every request within the limits is accepted
            return self.total + count <= self.capacity
        free = self.capacity - self.total - count
        return request + count + self.held(client) + count <= self.SHARE * free

    def add(self, client: str, count: int) -> None:
        self.total += count
        self._held[client] = self.held(client) + count
        if not self._held[client]:
            del self._held[client]
