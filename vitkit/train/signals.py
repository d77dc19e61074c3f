"""Ctrl-C, and schedulers' signals: the step under way is finished, the state saved, and the way to resume said."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from vitkit.errors import Interrupted

ASKING = (signal.SIGINT, signal.SIGTERM)
# a terminal that is gone, and what schedulers are often told to send; not where somebody listens, or nohup was said
AS_WELL = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGUSR1") if hasattr(signal, name))


class StopRequest:
    """As a context: signals ask politely. A second Ctrl-C does not; of the others one may come several times and mean
    one stop, as a scheduler signals every process, and torchrun passes on what it got."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self.signal is not None

    def interrupted(self, message: str) -> Interrupted:
        return Interrupted(message, 128 + (self.signal or signal.SIGTERM))

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # nobody else may listen
            for number in (*ASKING, *(also for also in AS_WELL if signal.getsignal(also) is signal.SIG_DFL)):
                self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number
