"""A run while it runs: a line that moves on a terminal, plain lines elsewhere; rate, time left, waiting for data."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

from vitkit.text import duration

SECONDS_BETWEEN_LINES = 10.0
MUCH, LONG = 0.3, 60.0  # share of a run spent waiting, and its seconds, from which it is told what helps


class Display:
    def __init__(self, *, step: int, steps: int, batch: int, shown: bool):
        self.first, self.steps, self.batch, self.shown = step, steps, batch, shown
        self.terminal = sys.stderr.isatty()
        self.started = self.said = time.perf_counter()
        self.aside = 0.0  # seconds spent on other things than steps: scoring, saving
        self.wait = 0.0

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown and self.terminal:
            print(file=sys.stderr)
        if error is None and self.wait > MUCH and time.perf_counter() - self.started > LONG:
            self.say(
                f"{self.wait:.0%} of the time went into waiting for pictures. More cores read faster; pictures of "
                "many megapixels can be made smaller once (vitkit shard DATA small/ --side 512)"
            )

    def rate(self, step: int) -> float:
        """Pictures per second of this process's steps so far."""
        seconds = time.perf_counter() - self.started - self.aside
        return max(step - self.first, 0) * self.batch / seconds if seconds > 0 else 0.0

    def update(self, step: int, loss: float, measures: dict[str, float], wait: float) -> None:
        now, self.wait = time.perf_counter(), wait
        last = step >= self.steps
        if not self.shown or (now - self.said < (0.2 if self.terminal else SECONDS_BETWEEN_LINES) and not last):
            return
        self.said = now
        rate = self.rate(step)
        left = (self.steps - step) * self.batch / rate if rate else 0.0
        values = "".join(f"  {name} {value:.3f}" for name, value in measures.items())
        text = (
            f"step {step:,}/{self.steps:,}  {duration(left)} left  loss {loss:.4f}{values}  "
            f"{rate:,.0f} pictures/s  waiting for data {wait:.0%}"
        )
        if self.terminal:  # a line that wraps cannot be written over
            print(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.shown:
            print(f"\r\x1b[2K{text}" if self.terminal else text, file=sys.stderr, flush=True)
