"""Progress of long work: a bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from vitkit import messages

Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = 10.0


class Progress(Protocol):
    """A function that yields the items and reports how many of `total` have passed."""

    def __call__(self, items: Iterable[Item], total: int, what: str) -> Iterator[Item]: ...


def no_progress(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Yield the items and report nothing."""
    return iter(items)


def show_progress(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Yield the items and show count, rate and time left on stderr."""
    if messages.is_quiet():
        return no_progress(items, total, what)
    bar = sys.stderr.isatty() and not messages.in_json()
    return _bar(items, total, what) if bar else _lines(items, total, what)


def _bar(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn(what),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TaskProgressColumn(show_speed=True),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task)


def _lines(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    started = last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last, rate = now, done / (now - started)
            left = (total - done) / rate
            text = f"{what}  {done:,} of {total:,}, {rate:,.3g}/s, {left:,.0f} s left"
            messages.progress_line(what, text, done=done, total=total, per_second=rate, seconds_left=left)
