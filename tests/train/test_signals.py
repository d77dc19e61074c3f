"""Being asked to stop: which signals ask, and which insist."""

from __future__ import annotations

import os
import signal

import pytest

from vitkit.train.signals import StopRequest


def test_schedulers_may_repeat_themselves_and_people_mean_it():
    with StopRequest() as stop:
        for sent in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.kill(os.getpid(), sent)
        assert stop.signal == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    heard = []
    before = (
        signal.signal(signal.SIGUSR1, lambda *given: heard.append(given)),
        signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    try:
        with StopRequest() as stop:  # where somebody listens, and where nohup was said
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.asked
            assert heard
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGHUP, before[1])
