"""Ctrl-C and SIGTERM: the step under way is finished, the state saved, and the way to resume said."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from vitkit.errors import Interrupted


class StopRequest:
    """As a context: signals ask politely; a second one does not."""

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
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.signal = number
