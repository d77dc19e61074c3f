"""Requests that failed for a reason that passes are repeated: after longer and longer random times, up to a limit.

Repeats are counted over this process and the data workers that it forks.
"""

import mmap
import os
import random
import threading
from collections.abc import Iterator

from vitkit.storage.failures import StorageError

TRIES, TIMEOUT, REQUESTS = "VITKIT_REMOTE_TRIES", "VITKIT_REMOTE_TIMEOUT", "VITKIT_REMOTE_REQUESTS"
FIRST, LONGEST = 0.5, 20.0  # seconds: the longest wait before the second try, and before any

_SLOTS = 512  # one for each process; two that share one lose a count only when both write at the same moment
_counts = memoryview(mmap.mmap(-1, _SLOTS * 8)).cast("q")  # memory that forked processes share
_lock = threading.Lock()


def most_tries() -> int:
    """Return how often a request is sent at most."""
    return _number(TRIES, os.environ.get(TRIES), 8)


def answer_timeout() -> int:
    """Return the seconds to wait for the next bytes of an answer."""
    return _number(TIMEOUT, os.environ.get(TIMEOUT), 30)


def most_requests() -> int:
    """Return how many requests a process has under way at a time."""
    return _number(REQUESTS, os.environ.get(REQUESTS), 16)


def _number(name: str, text: str | None, default: int) -> int:
    if not text:
        return default
    if not text.isdecimal() or not int(text):
        raise StorageError(f"{name}={text!r} is not a whole number from 1 on.", try_=str(default))
    return int(text)


def waits(tries: int) -> Iterator[float]:
    """Yield the seconds to wait before each further try: random, so that clients do not come back all at once."""
    for repeat in range(tries - 1):
        yield random.uniform(0, min(FIRST * 2**repeat, LONGEST))


def count_repeat() -> None:
    with _lock:
        _counts[os.getpid() % _SLOTS] += 1


def repeated_requests() -> int:
    """Return how many requests have been repeated, by this process and its workers."""
    return sum(_counts)


def describe_repeats(number: int) -> str:
    return f"{number:,} request{'' if number == 1 else 's'} {'was' if number == 1 else 'were'} repeated"


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)
