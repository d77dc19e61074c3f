"""What a server takes on, and what it refuses in words: everything that a client can make it hold has a bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace

from vitkit.errors import ConfigError, did_you_mean

RETRY_AFTER = 1  # seconds; a queue of hundreds is through in a few


@dataclass(frozen=True, kw_only=True)
class Limits:
    body: int = 32  # MB of a request
    pictures: int = 64  # in a request
    megapixels: int = 50  # of a picture: what large phones take; each reader may need 22 bytes for one pixel
    seconds: int = 30  # from a request's last byte to its answer
    queue: int = 256  # pictures taken in and not answered yet, over all requests
    held: int = 256  # MB of bodies, over all requests
    connections: int = 512  # open at a time
    patience: int = 10  # seconds for the head of a request; for its body too, plus one for each SLOWEST bytes

    def __post_init__(self) -> None:
        for field in fields(self):
            if (value := getattr(self, field.name)) < 1:
                raise ConfigError(f"--limit {field.name}={value}: 1 or more is needed")
        if self.pictures > self.queue:
            raise ConfigError(
                f"--limit pictures={self.pictures} queue={self.queue}: a request of {self.pictures} "
                "pictures could never be taken in",
                try_=f"--limit queue={self.pictures}, or more",
            )
        if self.body > self.held:
            raise ConfigError(
                f"--limit body={self.body} held={self.held}: a request of {self.body} MB could never be taken in",
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


SLOWEST = 64_000  # bytes a second, half a megabit: a phone at the edge of its network is no attack


def limits_of(words: Iterable[str]) -> Limits:
    """ "queue=64 seconds=5" → those limits instead of the usual ones."""
    known = [field.name for field in fields(Limits)]
    given: dict[str, int] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            raise ConfigError(
                f"--limit {word}: there is no limit {name!r}{did_you_mean(name, known)}", limits=", ".join(known)
            )
        if not (value.isascii() and value.isdecimal() and len(value) < 10):
            raise ConfigError(f"--limit {word}: a whole number is needed", try_=f"{name}={getattr(Limits(), name)}")
        given[name] = int(value)
    return replace(Limits(), **given)


class Refusal(Exception):
    """An answer that is none: a status, what is wrong in a sentence, what to do."""

    def __init__(self, status: int, error: str, try_: str | None = None, *, retry_after: int | None = None):
        super().__init__(error)
        self.status, self.error, self.try_, self.retry_after = status, error, try_, retry_after

    @property
    def content(self) -> dict[str, str | None]:
        return {"error": self.error, "try": self.try_}

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


class Busy(Refusal):
    """Not now: the same request may be taken in a moment."""

    def __init__(self, reason: str, error: str):
        super().__init__(
            503, error, "the same request again, after the seconds of Retry-After", retry_after=RETRY_AFTER
        )
        self.reason = reason


class Admission:
    """Counts what is taken in. Only the event loop's thread asks it, so nothing is locked."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.pictures = self.bytes = 0
        self.draining = False

    def check_open(self) -> None:
        """Before a body is read: is there any sense in reading it?"""
        if self.draining:
            raise Busy("draining", "The server is shutting down and takes nothing new.")
        if self.pictures >= self.limits.queue:
            raise self._full()

    def admit(self, pictures: int) -> AbstractContextManager[None]:
        """A place for each picture until the request is answered; all of them or a refusal."""
        if self.pictures + pictures > self.limits.queue:
            raise self._full()
        self.pictures += pictures
        return self._giving_back(pictures)

    @contextmanager
    def _giving_back(self, pictures: int) -> Iterator[None]:
        try:
            yield
        finally:
            self.pictures -= pictures

    def hold(self, count: int) -> None:
        """More bytes of a body; given back with let_go."""
        if self.bytes + count > self.limits.held_bytes:
            raise Busy("memory", "The server holds as many bytes of other requests as it may.")
        self.bytes += count

    def let_go(self, count: int) -> None:
        self.bytes -= count

    def _full(self) -> Busy:
        return Busy(
            "queue",
            f"The server is busy: {self.pictures} pictures wait for their answer, of {self.limits.queue} at most.",
        )
