"""Experiment trackers: TensorBoard itself where it is installed, and a stand-in for W&B."""

from __future__ import annotations

import importlib
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.train.runs import toy, train_run
from vitkit.cli.main import main
from vitkit.errors import ConfigError, Interrupted
from vitkit.train.signals import StopRequest
from vitkit.train.tracking import Trackers, check_installed

# the used part of wandb: init, a run with log and finish, and the base class of its errors
WANDB = """
class Error(Exception):
    pass

calls = []

class Run:
    def define_metric(self, name, step_metric):
        calls.append(("metric", name, step_metric))
    def log(self, values):
        calls.append(("log", values))
    def finish(self):
        calls.append(("finish",))

def init(**options):
    if options["config"].get("data") == "nowhere":
        raise Error("api_key not configured")
    calls.append(("init", options))
    return Run()
"""


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_is_an_error_before_the_run_starts(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "fashion", "--weights", "none", "--model", "mu/4", "--image", "28", "--track", name])
    printed = capsys.readouterr()
    assert f"--track {name} needs the package {name}, which is not installed" in printed.err
    assert f"pip install {name}" in printed.err
    assert printed.out == ""
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=f"pip install {name}"):
        Trackers([name], tmp_path, {})


def test_without_a_tracker_nothing_is_written(tmp_path: Path):
    check_installed([])
    trackers = Trackers([], tmp_path, {})
    trackers.log("step", 1, {"loss": 0.5})
    trackers.close()
    assert not list(tmp_path.iterdir())


def test_tensorboard_reads_the_logged_scalars(tmp_path: Path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trackers = Trackers(["tensorboard"], tmp_path, {"lr": 0.1})
    for step in (1, 2):
        trackers.log("step", step, {"loss": 0.5 / step, "lr": 0.25})
    trackers.log("score", 2, {"top1": 0.75, "what": "text is no number"})
    trackers.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"step/loss", "step/lr", "score/top1"}
    assert [(event.step, event.value) for event in events.Scalars("step/loss")] == [(1, 0.5), (2, 0.25)]
    assert [(event.step, event.value) for event in events.Scalars("score/top1")] == [(2, 0.75)]


def test_tensorboard_shows_each_step_once_after_resuming(tmp_path: Path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, last in ((0, 5), (3, 7)):
        trackers = Trackers(["tensorboard"], tmp_path, {}, step=first)
        for step in range(first + 1, last + 1):
            trackers.log("step", step, {"loss": float(step)})
        trackers.close()
        time.sleep(1.1)  # files are read in the order of their seconds
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("step/loss")] == [*range(1, 8)]


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "wandb.py").write_text(WANDB, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    module = importlib.import_module("wandb")
    yield module
    sys.modules.pop("wandb", None)


def test_wandb_gets_the_scalars_and_the_settings(tmp_path: Path, wandb):
    trackers = Trackers(["wandb"], tmp_path, {"lr": 0.1})
    trackers.log("step", 3, {"loss": 0.5, "what": "text is no number"})
    trackers.close()
    (_, options), *rest = wandb.calls
    assert (options["dir"], options["name"], options["config"]) == (tmp_path, tmp_path.name, {"lr": 0.1})
    assert rest == [("metric", "*", "step"), ("log", {"step": 3, "step/loss": 0.5}), ("finish",)]


def test_a_stopped_run_closes_its_trackers(tmp_path: Path, wandb, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(StopRequest, "__enter__", lambda request: setattr(request, "signal", signal.SIGTERM) or request)
    with pytest.raises(Interrupted):
        train_run(toy(tmp_path / "run", steps=3, track=("wandb",)))
    assert wandb.calls[-1] == ("finish",)


def test_a_resumed_run_keeps_its_wandb_id_and_a_namesake_gets_another(tmp_path: Path, wandb):
    folders = [tmp_path / "a" / "pets", tmp_path / "a" / "pets", tmp_path / "b" / "pets"]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        Trackers(["wandb"], folder, {})
    begun, resumed, namesake = (call[1]["id"] for call in wandb.calls if call[0] == "init")
    assert begun == resumed != namesake


def test_wandb_without_a_login_says_what_to_do(tmp_path: Path, wandb):
    with pytest.raises(ConfigError, match=r"--track wandb: api_key not configured[\s\S]*wandb login"):
        Trackers(["wandb"], tmp_path, {"data": "nowhere"})
