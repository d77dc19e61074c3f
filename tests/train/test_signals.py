"""Signal handlers: which signals request a stop, and which interrupt at once."""

from __future__ import annotations

import os
import signal

import pytest

from vitkit.train.signals import StopRequest


def test_repeated_signals_request_one_stop_and_a_second_ctrl_c_interrupts():
    with StopRequest() as stop:
        for sent in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.kill(os.getpid(), sent)
        assert stop.signal == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    received = []
    before = (
        signal.signal(signal.SIGUSR1, lambda *arguments: received.append(arguments)),
        signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    try:
        with StopRequest() as stop:  # a handler that is set already, and nohup, stay
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.requested
            assert received
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGHUP, before[1])
