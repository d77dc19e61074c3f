"""Signal handlers: which signals request a stop, and which interrupt at once."""

from __future__ import annotations

import os
import signal

import pytest

from vitkit.errors import ConfigError
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


@pytest.mark.parametrize(
    ("preempted_by", "sent"),
    [("", signal.SIGUSR2), ("USR2", signal.SIGUSR2), ("SIGALRM", signal.SIGALRM), ("12", signal.SIGUSR2)],
)
def test_the_signal_that_submitit_names_requests_a_stop(
    preempted_by: str, sent: signal.Signals, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SUBMITIT_PREEMPT_SIGNAL", preempted_by)
    with StopRequest() as stop:
        os.kill(os.getpid(), sent)
        assert stop.signal == sent
    assert signal.getsignal(sent) is signal.SIG_DFL


@pytest.mark.parametrize("name", ["USR3", "KILL", "99"])
def test_a_signal_that_nobody_can_handle_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SUBMITIT_PREEMPT_SIGNAL", name)
    with pytest.raises(ConfigError, match=f"SUBMITIT_PREEMPT_SIGNAL is {name}"), StopRequest():
        pass
