"""Progress of long work in images: a bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from vitkit import messages

Item = TypeVar("Item")
PrintLine = Callable[[str, str], None]  # a label and what was decided

SECONDS_BETWEEN_LINES = 10.0


def one_image(item: object) -> int:
    """Return 1, the number of images in an item that is an image."""
    return 1


class Progress(Protocol):
    """A function that yields the items and reports how many of `total` images have passed.

    An item is an image, or a batch, of which `images_in` returns the number of images.
    """

    def __call__(
        self, items: Iterable[Item], total: int, what: str, images_in: Callable[[Item], int] = one_image
    ) -> Iterator[Item]: ...


def no_progress(
    items: Iterable[Item], total: int, what: str, images_in: Callable[[Item], int] = one_image
) -> Iterator[Item]:
    """Yield the items and report nothing."""
    return iter(items)


def show_progress(
    items: Iterable[Item], total: int, what: str, images_in: Callable[[Item], int] = one_image
) -> Iterator[Item]:
    """Yield the items and show count, rate and time left on stderr."""
    if messages.is_quiet():
        return no_progress(items, total, what)
    show = _bar if sys.stderr.isatty() and not messages.in_json() else _lines
    return show(items, total, what, images_in)


def show_count(what: str, noun: str) -> Callable[[int], None]:
    """Return a function that is told how many more have been counted, and prints their number every few seconds."""
    started = last = time.monotonic()
    count = 0

    def add(more: int) -> None:
        nonlocal count, last
        count += more
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last, rate = now, count / (now - started)
            text = f"{what}  {count:,} {noun}, {rate:,.0f} a second"
            messages.progress_line(what, text, done=count, per_second=rate)

    return add


def _bar(items: Iterable[Item], total: int, what: str, images_in: Callable[[Item], int]) -> Iterator[Item]:
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            return Text(_rate(task.speed) if task.speed else "")

    columns = (
        progress.TextColumn(what),
        progress.BarColumn(),
        progress.TextColumn("{task.completed:,.0f} of {task.total:,.0f} images"),
        Rate(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.advance(task, images_in(item))


def _lines(items: Iterable[Item], total: int, what: str, images_in: Callable[[Item], int]) -> Iterator[Item]:
    started = last = time.monotonic()
    done = 0
    for item in items:
        yield item
        done += images_in(item)
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES and done:
            last, rate = now, done / (now - started)
            left = (total - done) / rate
            text = f"{what}  {done:,} of {total:,} images, {_rate(rate)}, {left:,.0f} s left"
            messages.progress_line(what, text, done=done, total=total, per_second=rate, seconds_left=left)


def _rate(images_per_second: float) -> str:
    digits = 0 if images_per_second >= 10 else 2
    return f"{images_per_second:,.{digits}f} images/s"
