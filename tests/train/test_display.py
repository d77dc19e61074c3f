"""The progress that a run shows."""

from __future__ import annotations

import re
import sys

import pytest

from vitkit.train.display import Display


def show(steps: range, *, batch: int = 32) -> None:
    with Display(step=steps[0] - 1, steps=steps[-1], batch=batch, shown=True) as display:
        for step in steps:
            display.last_line = 0.0  # as if the last line were long ago
            display.update(step, 1.25, {"accuracy": 0.5}, 0.031)


def test_without_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]):
    show(range(999, 1001))
    first, last = capsys.readouterr().err.splitlines()
    pattern = r"step {}/1,000  [\d.]+ s left  loss 1.2500  accuracy 0.500  [\d,]+ images/s  waiting for data 3%"
    assert re.fullmatch(pattern.format("999"), first)
    assert re.fullmatch(pattern.format("1,000"), last)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_on_a_terminal_one_line_is_rewritten_and_never_wraps(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show(range(99_990, 100_001), batch=4096)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1  # the one that ends it
    states = shown.split("\r\x1b[2K")[1:]
    assert len(states) == 11
    assert max(len(state.rstrip("\n")) for state in states) < columns
    assert all("left" in state for state in states)


def test_only_one_process_prints(capsys: pytest.CaptureFixture[str]):
    with Display(step=0, steps=1, batch=1, shown=False) as display:
        display.update(1, 1.0, {}, 0.0)
        display.message("a line that stays")
    assert capsys.readouterr().err == ""


def test_rolling_back_before_the_start_gives_no_negative_rate():
    assert Display(step=50, steps=100, batch=8, shown=False).rate(40) == 0


@pytest.mark.parametrize(("wait", "seconds", "advised"), [(0.43, 90, True), (0.1, 90, False), (0.43, 20, False)])
def test_a_run_that_waited_long_for_data_gets_advice(
    wait: float, seconds: float, advised: bool, capsys: pytest.CaptureFixture[str]
):
    with Display(step=0, steps=2, batch=8, shown=True) as display:
        display.started -= seconds
        display.update(2, 1.0, {}, wait)
    assert (f"{wait:.0%} of the time was spent waiting for data" in capsys.readouterr().err) == advised
