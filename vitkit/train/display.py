"""Progress of a run: step, time left, loss, images per second, share of time spent waiting for data."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

from vitkit import messages
from vitkit.text import duration

SECONDS_BETWEEN_LINES = 10.0
WAIT_SHARE, WAIT_SECONDS = 0.3, 60.0  # of waiting for data, and length of a run, from which advice is shown


class Display:
    """A line that is rewritten on a terminal, or plain lines elsewhere, on stderr."""

    def __init__(self, *, step: int, steps: int, batch: int, shown: bool):
        self.first_step, self.steps, self.batch = step, steps, batch
        self.shown = shown and not messages.is_quiet()
        self.terminal = sys.stderr.isatty() and not messages.in_json()
        self.started = self.last_line = time.perf_counter()
        self.paused = 0.0  # seconds spent on validation and checkpoints
        self.wait = 0.0

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown and self.terminal:
            print(file=sys.stderr)
        if error is None and self.wait > WAIT_SHARE and time.perf_counter() - self.started > WAIT_SECONDS:
            self.message(
                f"{self.wait:.0%} of the time was spent waiting for data. More cores load faster; images of many "
                "megapixels can be downsized once (vitkit shard DATA small/ --side 512)"
            )

    def rate(self, step: int) -> float:
        """Return the images per second of the steps so far."""
        seconds = time.perf_counter() - self.started - self.paused
        return max(step - self.first_step, 0) * self.batch / seconds if seconds > 0 else 0.0

    def update(self, step: int, loss: float, metrics: dict[str, float], wait: float) -> None:
        now, self.wait = time.perf_counter(), wait
        last = step >= self.steps
        if not self.shown or (now - self.last_line < (0.2 if self.terminal else SECONDS_BETWEEN_LINES) and not last):
            return
        self.last_line = now
        rate = self.rate(step)
        left = (self.steps - step) * self.batch / rate if rate else 0.0
        values = "".join(f"  {name} {value:.3f}" for name, value in metrics.items())
        text = (
            f"step {step:,}/{self.steps:,}  {duration(left)} left  loss {loss:.4f}{values}  "
            f"{rate:,.0f} images/s  waiting for data {wait:.0%}"
        )
        if self.terminal:  # a line that wraps cannot be rewritten
            print(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
        else:
            fields = {"steps": self.steps, "loss": loss, **metrics, "images_per_second": rate, "seconds_left": left}
            messages.progress_line("training", text, step=step, **fields, data_wait=wait)

    def message(self, text: str) -> None:
        """Print a line that stays."""
        if self.shown:
            if self.terminal:
                print("\r\x1b[2K", end="", file=sys.stderr)
            messages.progress_line("training", text)
