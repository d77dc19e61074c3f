"""Learning rate search: trials that are killed, stopped or diverge."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.runs import Command, assert_same_end, command_line, error_of, metric_lines, resume
from vitkit.cli.main import main
from vitkit.data.augment import augment
from vitkit.train import inputs

pytestmark = pytest.mark.usefixtures("one_thread")

CHOICE: dict[str, Any] = {
    "steps": 8,
    "choose_lr": True,
    "lr_candidates": (0.001, 0.01),
    "save_every": 3,
    "dev": 0.02,
    "schedule__warmup": 1,
}


def test_finished_trials_are_not_repeated(tmp_path: Path):
    expected, run = tmp_path / "uninterrupted", tmp_path / "run"
    assert Command(command_line(expected, **CHOICE), tmp_path / "log").wait() == 0
    started = Command(
        command_line(run, **CHOICE), tmp_path / "log", dies_at="vitkit.train.inputs:augment", after=2 * (8 + 5)
    )
    assert started.wait() == -signal.SIGKILL, started.output
    first = run / "rates" / "0.001" / "model.safetensors"
    before = first.stat().st_mtime_ns
    resume(run, tmp_path / "log")
    assert first.stat().st_mtime_ns == before
    assert_same_end(run, expected)
    assert metric_lines(run / "rates" / "0.01") == metric_lines(expected / "rates" / "0.01")
    trials = [json.loads((folder / "run.json").read_text())["learning_rates"] for folder in (run, expected)]
    assert trials[0] == trials[1]
    best = max(trials[0], key=lambda one: one["top1"])
    assert f"lr = {best['lr']}\n" in (run / "config.toml").read_text()


def test_a_rate_that_diverges_is_not_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    main(command_line(tmp_path / "run", **{**CHOICE, "lr_candidates": (1e36, 0.001)}))
    printed = capsys.readouterr().out
    assert "learning rate 1e+36: diverged" in printed
    assert "chosen    learning rate 0.001" in printed
    message = error_of(capsys, *command_line(tmp_path / "other", **{**CHOICE, "lr_candidates": (1e36, 2e36)}))
    assert "every learning rate of 1e+36, 2e+36 diverged" in message


def test_a_stopped_trial_names_the_run_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def stopping(*arguments: Any, **options: Any) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        monkeypatch.setattr(inputs, "augment", augment)
        return augment(*arguments, **options)

    monkeypatch.setattr(inputs, "augment", stopping)
    with pytest.raises(SystemExit) as stopped:
        main(command_line(tmp_path / "run", **CHOICE))
    assert stopped.value.code == 143
    assert f"vitkit resume {tmp_path / 'run'} continues" in capsys.readouterr().err
    config = tmp_path / "run" / "config.toml"
    original = config.read_text()
    config.write_text(original.replace("batch = 16", "batch = 8"))
    assert "batch: 16 → 8" in error_of(capsys, "resume", str(tmp_path / "run"))
    config.write_text(original)
    main(["resume", str(tmp_path / "run")])
