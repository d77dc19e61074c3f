"""Long work shows where it is: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = 10.0


def progress(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """The items, counted as they pass: rate and time left, on stderr."""
    if sys.stderr.isatty():
        yield from _bar(items, total, what)
    else:
        yield from _lines(items, total, what)


def _bar(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    from rich import progress as shows
    from rich.console import Console

    columns = (
        shows.TextColumn(what),
        shows.BarColumn(),
        shows.MofNCompleteColumn(),
        shows.TaskProgressColumn(show_speed=True),
        shows.TimeRemainingColumn(),
    )
    with shows.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total)
        for item in items:
            yield item
            shown.advance(task)


def _lines(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    started = last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last, rate = now, done / (now - started)
            print(
                f"{what}  {done:,} of {total:,}, {rate:,.3g}/s, {(total - done) / rate:,.0f} s left",
                file=sys.stderr,
                flush=True,
            )
