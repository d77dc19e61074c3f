"""Signal handlers for Ctrl-C and preemption: the run finishes its step, saves a checkpoint and says how to resume."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from vitkit.errors import ConfigError, Interrupted

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# a closed terminal, and what schedulers often send before preemption; left alone where a handler is set (nohup, too)
OPTIONAL_SIGNALS = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))
UNCATCHABLE = {getattr(signal, name) for name in ("SIGKILL", "SIGSTOP") if hasattr(signal, name)}


class StopRequest:
    """A context in which a signal requests a stop; a second Ctrl-C raises KeyboardInterrupt.

    Other signals may arrive several times: a scheduler signals every process, and torchrun forwards what it got.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # only the main thread may set handlers
            optional = {*OPTIONAL_SIGNALS, *_preemption_signal()}.difference(STOP_SIGNALS)
            for number in (
                *STOP_SIGNALS,
                *sorted(one for one in optional if signal.getsignal(one) is signal.SIG_DFL),
            ):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number


def _preemption_signal() -> set[signal.Signals]:
    """Return the signal that $SUBMITIT_PREEMPT_SIGNAL names, such as USR2, SIGUSR2 or 12, if it is set."""
    text = os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "").strip().upper()
    if not text:
        return set()
    try:
        number = signal.Signals(int(text)) if text.isdigit() else signal.Signals[f"SIG{text.removeprefix('SIG')}"]
        if number in UNCATCHABLE:
            raise ValueError
    except (ValueError, KeyError):
        raise ConfigError(
            f"the environment variable SUBMITIT_PREEMPT_SIGNAL is {text}, which is no signal that a process can handle",
            try_="export SUBMITIT_PREEMPT_SIGNAL=USR2",
        ) from None
    return {number}


def interrupted(message: str, number: int) -> Interrupted:
    """Return the end of work that a signal has stopped; it exits with 128 plus the signal's number, as in shells."""
    return Interrupted(message, 128 + number)


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception; like Ctrl-C, no handler of errors catches it."""


@contextmanager
def stop_cleanly_on_sigterm() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM, as schedulers send it, so that half-written files are removed as after Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(stopped: KeyboardInterrupt) -> int:
    """Return 128 plus the number of the signal, as shells do."""
    return 128 + (signal.SIGTERM if isinstance(stopped, Terminated) else signal.SIGINT)
