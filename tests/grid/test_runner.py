"""Trials as ordinary runs: shared, resumed after a kill, diverged, in one process and in two."""

from __future__ import annotations

import json
import multiprocessing
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.train.runs import TOY, Command, same_tensors, weights
from vitkit import devices, shared_data
from vitkit.cli.main import main
from vitkit.data.sources.open import open_data
from vitkit.grid.arm import Arm, Trial, trials_of
from vitkit.grid.devices import MPS, advise_mps, parallel, pick_devices
from vitkit.grid.estimate import estimate
from vitkit.grid.outcome import read_outcome
from vitkit.grid.processes import LostProcess, TrialProcesses, share_of_cores
from vitkit.grid.runner import Runner, run_trials
from vitkit.grid.trial_runner import TrialRunner
from vitkit.run_folder import RunFolder

SETTINGS: dict[str, Any] = {
    **{name: value for name, value in TOY.items() if name != "device"},
    "image": [28, 28],
    "data": "fashion",
    "steps": 2,
    "duplicates": "ignore",
}


def arm(name: str, **changes: Any) -> Arm:
    return Arm(name=name, settings={**SETTINGS, **changes})


def silent(*result: object) -> None:
    pass


def test_a_trial_is_an_ordinary_run_and_runs_once(tmp_path):
    ran = []
    arms = [arm("one"), arm("another name", lr=0.002), arm("same as one")]
    outcomes = run_trials(
        trials_of(arms, [0]),
        tmp_path,
        devices=["cpu"],
        report=lambda trial, outcome, now: ran.append((trial.arm.name, now)),
    )
    assert ran == [("one", True), ("another name", True)]
    one, other, same = outcomes.values()
    assert one.run == same.run != other.run
    assert one.status == "finished"
    assert 0 <= one.score <= 100
    assert RunFolder(one.run).config().steps == 2
    assert (one.run / "report.html").is_file()
    again: list[bool] = []
    assert (
        run_trials(trials_of(arms, [0]), tmp_path, devices=["cpu"], report=lambda *result: again.append(result[2]))
        == outcomes
    )
    assert not any(again)


def test_the_recorded_command_makes_the_same_model(tmp_path, monkeypatch):
    trial = Trial(arm("one", schedule={"warmup": 1}, augment={"crop": False}), 3)
    runner = TrialRunner(tmp_path, "cpu")
    runner.run(trial)
    command = shlex.split(RunFolder(runner.path(trial)).record()["command"])
    assert command[:3] == ["vitkit", "fit", "fashion"]
    main([*command[1:], "device=cpu", "--out", str(tmp_path / "by-hand")])
    assert same_tensors(weights(runner.path(trial)), weights(tmp_path / "by-hand"))


def test_a_trial_starts_from_the_model_of_another(tmp_path):
    first = arm("pre-training")
    own = {name: value for name, value in SETTINGS.items() if name not in ("model", "weights", "image", "channels")}
    second = Arm(name="fine-tuning", settings=own, weights_from=first)
    trials = trials_of([second], [0, 1])
    assert [trial.arm.name for trial in trials] == ["pre-training", "fine-tuning"] * 2
    outcomes = run_trials(trials, tmp_path, devices=["cpu"], report=silent)
    for seed in (0, 1):
        config = RunFolder(outcomes[Trial(second, seed)].run).config()
        assert config.weights == str(outcomes[Trial(first, seed)].run)


def test_a_run_that_diverges_is_a_result(tmp_path):
    trial = Trial(arm("wild", lr=1e30, clip=0.0, steps=20), 0)
    outcome = run_trials([trial], tmp_path, devices=["cpu"], report=silent)[trial]
    assert (outcome.status, outcome.score) == ("diverged", None)
    assert TrialRunner(tmp_path, "cpu").run(trial) is False


def test_a_run_that_starts_from_one_that_diverged_has_diverged(tmp_path):
    wild = arm("wild", lr=1e30, clip=0.0, steps=20)
    own = {name: value for name, value in SETTINGS.items() if name not in ("model", "weights", "image", "channels")}
    trials = trials_of([Arm(name="fine-tuning", settings=own, weights_from=wild)], [0])
    before, after = run_trials(trials, tmp_path, devices=["cpu"], report=silent).values()
    assert (before.status, after.status, after.score) == ("diverged", "diverged", None)
    again: list[bool] = []
    run_trials(trials, tmp_path, devices=["cpu"], report=lambda *result: again.append(result[2]))
    assert again == [False, False]


def test_pretraining_without_labels_has_no_score_and_its_model_can_be_fine_tuned(tmp_path):
    """Its estimate is that of an ordinary step; nothing is scored, and the run that starts from it is."""
    unlabelled = {name: value for name, value in SETTINGS.items() if name != "duplicates"}
    settings = {**unlabelled, "objective": "masked-patch", "recipe": "small_masked_patch"}
    masked = Arm(name="masked patches", settings=settings)
    own = {name: value for name, value in SETTINGS.items() if name not in ("model", "weights", "image", "channels")}
    trials = trials_of([Arm(name="fine-tuning", settings=own, weights_from=masked)], [0])
    runner = TrialRunner(tmp_path, "cpu")
    for cost in estimate(trials, runner):
        assert (cost.steps, cost.images, cost.done) == (2, 2 * SETTINGS["batch"], False)
        assert cost.seconds > 0
    before, after = run_trials(trials, tmp_path, devices=["cpu"], report=silent).values()
    assert (before.status, before.score) == ("finished", None)
    assert after.status == "finished"
    assert 0 <= after.score <= 100
    assert all(cost.done and not cost.seconds for cost in estimate(trials, runner))


def test_other_data_under_the_same_name_are_another_trial(tmp_path):
    from PIL import Image

    def fill(count: int) -> None:
        for name in ("a", "b"):
            for number in range(count):
                path = tmp_path / "photos" / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("L", (8, 8), number * 9 + 100 * (name == "b")).save(path)

    trial = Trial(arm("photos", data=str(tmp_path / "photos")), 0)
    fill(3)
    before = TrialRunner(tmp_path, "cpu").path(trial)
    fill(4)
    assert TrialRunner(tmp_path, "cpu").path(trial) != before


GRID = """
seeds = 1
[settings]
data = "fashion"
duplicates = "ignore"
model = "mu/4"
weights = "none"
image = 28
channels = 1
batch = 16
micro = 8
workers = 0
precision = "fp32"
steps = 4
save_every = 1
[axes]
lr = [0.001, 0.003]
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "rates.toml").write_text(GRID)
    main(["grid", str(folder / "rates.toml"), "--out", str(folder / "out"), "--device", "cpu"])
    return folder


@pytest.mark.parametrize(
    ("dies_at", "after"),
    [
        ("vitkit.grid.trial_runner:start_run", 2),
        ("vitkit.run:log_warnings", 1),  # before the first checkpoint
        ("vitkit.run_score:evaluate", 1),
        ("vitkit.run_score:write_report", 2),
        ("vitkit.cli.grid:print_json", 1),
    ],
)
def test_killed_anywhere_it_goes_on_to_the_same_table(undisturbed, tmp_path, dies_at, after):
    command = ["grid", str(undisturbed / "rates.toml"), "--out", str(tmp_path / "out"), "--device", "cpu", "--json"]
    assert Command(command, tmp_path / "killed.txt", dies_at=dies_at, after=after).wait() == -9
    resumed = Command(command, tmp_path / "resumed.txt")
    assert resumed.wait() == 0, resumed.output
    expected = sorted((undisturbed / "out" / "runs").iterdir())
    found = sorted((tmp_path / "out" / "runs").iterdir())
    assert [run.name for run in found] == [run.name for run in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert same_tensors(weights(ours), weights(theirs))
        assert read_outcome(ours).score == read_outcome(theirs).score


@pytest.mark.slow
def test_two_processes_give_the_table_of_one(undisturbed, tmp_path, capfd):
    main(
        [
            "grid",
            str(undisturbed / "rates.toml"),
            "--out",
            str(tmp_path / "out"),
            "--device",
            "cpu",
            "--jobs",
            "2",
            "--json",
        ]
    )
    result = json.loads(capfd.readouterr().out)
    scores = {Path(run["run"]).name: read_outcome(Path(run["run"])).score for run in result["runs"]}
    assert scores == {run.name: read_outcome(run).score for run in (undisturbed / "out" / "runs").iterdir()}


def test_comparisons_that_follow_one_another_open_their_data_once(tmp_path, monkeypatch):
    opened = []

    def counting(source, **options):
        opened.append(source)
        return open_data(source, **options)

    monkeypatch.setattr(shared_data, "open_data", counting)
    with Runner(tmp_path, ["cpu"]) as runner:
        runner.run(trials_of([arm("one")], [0]), silent)
        before = len(opened)
        runner.run(trials_of([arm("another", lr=0.002)], [0]), silent)
    assert before == len(opened) > 0


@pytest.mark.slow
def test_comparisons_that_follow_one_another_have_the_same_processes(tmp_path):
    with Runner(tmp_path, ["cpu", "cpu"]) as runner:
        assert runner.processes is not None
        runner.run(trials_of([arm("one")], [0, 1]), silent)
        first = {process.pid for process, _ in runner.processes.free}
        outcomes = runner.run(trials_of([arm("another", lr=0.002)], [0, 1]), silent)
        assert {process.pid for process, _ in runner.processes.free} == first
        assert [outcome.status for outcome in outcomes.values()] == ["finished"] * 2
        processes = [process for process, _ in runner.processes.free]
    assert not any(process.is_alive() for process in processes)


@pytest.mark.parametrize(
    ("name", "jobs", "devices"),
    [
        ("cuda", None, ["cuda:0", "cuda:1"]),
        ("cuda", 1, ["cuda:0"]),
        ("cuda", 3, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda:1", None, ["cuda:1"]),
        ("cuda:1", 2, ["cuda:1", "cuda:1"]),
        ("cpu", None, ["cpu"]),
        ("cpu", 2, ["cpu", "cpu"]),
    ],
)
def test_every_gpu_has_a_process_and_jobs_beyond_them_share_one(name, jobs, devices, monkeypatch):
    monkeypatch.setattr("vitkit.grid.devices.pick_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_devices(name, jobs) == devices


def test_mps_is_advised_where_runs_share_a_gpu_and_it_is_not_running(tmp_path, monkeypatch):
    program, pipes = tmp_path / MPS, tmp_path / "pipes"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(pipes))
    assert advise_mps(["cuda:0", "cuda:0"]) == ""  # it is not installed
    program.touch(0o755)
    assert f"{MPS} -d" in advise_mps(["cuda:0", "cuda:1", "cuda:0"])
    assert advise_mps(["cuda:0", "cuda:1"]) == advise_mps(["cpu", "cpu"]) == ""
    pipes.mkdir()
    (pipes / "control").touch()
    assert advise_mps(["cuda:0", "cuda:0"]) == ""


def test_processes_divide_the_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 5, 6}, raising=False)
    shares = [share_of_cores(number, 2) for number in range(2)]
    assert shares == [{0, 2, 6}, {1, 5}]
    assert share_of_cores(3, 6) == set()


@pytest.mark.parametrize("when", ["before its trial", "during it"])
def test_a_process_that_dies_is_named_by_its_trial(when, tmp_path, monkeypatch):
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    if when == "before its trial":
        theirs.close()
    dead = SimpleNamespace(terminate=lambda: None, join=lambda: None)
    processes = TrialProcesses(tmp_path, ["cpu"])
    processes.free = [(dead, ours)]
    if when == "during it":
        monkeypatch.setattr("vitkit.grid.processes.wait", lambda connections: (theirs.close(), connections)[1])
    with pytest.raises(LostProcess, match="the arm 'one' with seed 0 ended without a word"):
        processes.run(trials_of([arm("one")], [0]), TrialRunner(tmp_path, "cpu"), silent)
    processes.close()


def test_processes_on_the_same_memory_take_their_shares_of_it(monkeypatch):
    alone = devices.available_memory()
    monkeypatch.setattr(devices, "_on_host", 1)
    monkeypatch.setattr(devices, "_on_gpu", 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (12 << 30, 16 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 << 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1 << 30)
    devices.share_memory(on_gpu=3, on_host=4)
    assert devices.available_memory() < alone / 3
    assert devices.free_memory(torch.device("cuda", 0)) == (4 + 1) << 30  # its own unused memory is its own


def test_an_estimate_counts_devices_that_runs_do_not_share():
    assert parallel(["cpu"] * 3) == 3
    assert parallel(["cuda:0"] * 3) == 1
    assert parallel(["cuda:0", "cuda:1", "cuda:0"]) == 2


def test_a_dry_run_names_steps_and_images_and_writes_nothing(undisturbed, tmp_path, capsys):
    main(
        [
            "grid",
            str(undisturbed / "rates.toml"),
            "--out",
            str(tmp_path / "out"),
            "--device",
            "cpu",
            "--dry-run",
            "--json",
        ]
    )
    result = json.loads(capsys.readouterr().out)
    assert [(run["steps"], run["images"], run["done"]) for run in result["runs"]] == [(4, 64, False)] * 2
    assert all(run["seconds"] > 0 for run in result["runs"])
    assert not (tmp_path / "out").exists()
    main(["grid", str(undisturbed / "rates.toml"), "--out", str(undisturbed / "out"), "--device", "cpu", "--dry-run"])
    assert "0 of 2 runs are left" in capsys.readouterr().out
