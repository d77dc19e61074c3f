"""Runs that are killed, stopped or out of disk space resume to the same result bit for bit, or say why they cannot."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.sample_images import encode, scene
from tests.train.runs import (
    LONG,
    Command,
    assert_same_end,
    command_line,
    error_of,
    last_step,
    metric_lines,
    poison,
    resume,
    same_tensors,
    start_command,
    states,
    toy,
    train_run,
    weights,
)
from vitkit.cli.main import main
from vitkit.config.schema import AdamW, Schedule
from vitkit.data.augment import augment
from vitkit.data.sources.open import open_data
from vitkit.run_folder import RunFolder
from vitkit.train import checkpoint, inputs
from vitkit.weights.run_checkpoints import complete_checkpoints

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 30
EVERYTHING: dict[str, Any] = {
    "steps": STEPS,
    "save_every": 3,
    "lr": 0.001,
    "optimizer__kind": "adamw",
    "schedule__warmup": 5,
    "dropout": 0.1,
    "average": 0.9,
    "dev": 0.02,
    "score_every": 8,
    "augment__crop": (0.3, 1.0),
    "augment__randaugment": (2, 9),
    "augment__mixup": 0.2,
    "augment__erase": 0.1,
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    started = Command(command_line(folder / "run", **EVERYTHING), folder / "log")
    assert started.wait() == 0, started.output
    return folder / "run"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, killed after nine steps; tests copy it."""
    folder = tmp_path_factory.mktemp("killed")
    started = Command(
        command_line(folder / "run", **EVERYTHING), folder / "log", dies_at="vitkit.train.checkpoint:keep_only", after=4
    )
    assert started.wait() == -signal.SIGKILL, started.output
    assert max(states(folder / "run")) == "step-00000009"  # some steps further: checkpoints are written beside them
    return folder / "run"


@pytest.fixture
def copy(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "copy"))


# Kills


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_five_kills_at_random_steps_change_nothing(workers: int, uninterrupted: Path, tmp_path: Path):
    run = tmp_path / "run"
    start = command_line(run, **EVERYTHING, workers=workers)
    for number, step in enumerate(np.sort(np.random.default_rng(workers).choice(range(1, STEPS), 5, replace=False))):
        started = Command(["resume", str(run)] if number else start, tmp_path / "log")
        assert started.kill_once(lambda step=step: last_step(run) >= step), started.output
    resume(run, tmp_path / "log")
    assert_same_end(run, uninterrupted)


def test_kills_at_any_moment_change_nothing(uninterrupted: Path, tmp_path: Path):
    """With a checkpoint after every step, much of the time is spent writing them."""
    run, random = tmp_path / "run", np.random.default_rng(0)
    started = Command(command_line(run, **{**EVERYTHING, "save_every": 1}), tmp_path / "log")
    kills = int(  # anywhere in the beginning, but on a slow machine not after the end
        started.kill_once(
            lambda: (run / "config.toml").exists() and (random.random() < 0.001 or last_step(run) >= STEPS // 5)
        )
    )
    while last_step(run) < STEPS - 2 and kills < 8:
        started = Command(["resume", str(run)], tmp_path / "log")
        reached = last_step(run)
        kills += started.kill_once(lambda reached=reached: last_step(run) > reached and random.random() < 0.1)
    resume(run, tmp_path / "log")
    assert kills > 3
    assert metric_lines(run) == metric_lines(uninterrupted)
    assert same_tensors(weights(run), weights(uninterrupted))
    assert same_tensors(states(run)["step-00000030"], states(uninterrupted)["step-00000030"])


@pytest.mark.parametrize(
    ("target", "after"),
    [
        pytest.param("vitkit.train.trainer:initial_model", 1, marks=pytest.mark.slow),  # before anything is written
        pytest.param(
            "vitkit.train.checkpoint:write_record", 1, marks=pytest.mark.slow
        ),  # first checkpoint half written
        pytest.param("vitkit.run:describe_data", 1, marks=pytest.mark.slow),  # before the record
        ("vitkit.train.inputs:augment", 1),  # before the first step
        ("vitkit.train.checkpoint:save_file", 4),  # before the shard of a later checkpoint is written
        pytest.param("vitkit.train.checkpoint:checksum", 7, marks=pytest.mark.slow),  # after it
        ("vitkit.train.checkpoint:write_record", 5),  # later checkpoint half written
        pytest.param("vitkit.train.checkpoint:_sync", 5, marks=pytest.mark.slow),  # before an old checkpoint is deleted
        pytest.param("vitkit.train.trainer:save", 1, marks=pytest.mark.slow),  # trained, but not saved
        ("vitkit.run_score:evaluate", 1),  # saved, but not scored
        ("vitkit.run_score:write_report", 1),  # scored, but not reported
    ],
)
def test_a_kill_at_this_very_moment_changes_nothing(target: str, after: int, uninterrupted: Path, tmp_path: Path):
    run = tmp_path / "run"
    started = Command(command_line(run, **EVERYTHING), tmp_path / "log", dies_at=target, after=after)
    assert started.wait() == -signal.SIGKILL, started.output
    resume(run, tmp_path / "log")
    assert_same_end(run, uninterrupted)
    assert (run / "report.html").is_file()
    assert json.loads((run / "evaluation.json").read_text())["images"] == 1000


def test_a_half_written_checkpoint_is_ignored(copy: Path, uninterrupted: Path, tmp_path: Path):
    saving, half = copy / "checkpoints" / ".saving", copy / "checkpoints" / "step-00000028"
    for folder in (saving, half):
        shutil.copytree(copy / "checkpoints" / "step-00000009", folder)
    (half / "record.json").unlink()
    resume(copy, tmp_path / "log")
    assert_same_end(copy, uninterrupted)


def test_a_checkpoint_that_is_being_deleted_is_no_longer_complete(copy: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoints = copy / "checkpoints"
    before = [path.name for path in complete_checkpoints(checkpoints)]

    def killed(path: Path, **options: object) -> None:
        if path.exists():
            next(path.glob("*.safetensors")).unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.keep_only(checkpoints, [])
    monkeypatch.undo()
    left = complete_checkpoints(checkpoints)
    assert len(left) == len(before) - 1
    assert all(any(path.glob("*.safetensors")) for path in left)
    checkpoint.keep_only(checkpoints, [])
    assert not list(checkpoints.glob(".leaving"))


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(copy: Path, uninterrupted: Path, tmp_path: Path):
    latest = copy / "checkpoints" / "step-00000009"
    (shard,) = latest.glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:1000])
    resume(copy, tmp_path / "log")
    assert f"{latest} is damaged" in " ".join((tmp_path / "log").read_text().split())
    assert_same_end(copy, uninterrupted)


def test_a_kill_after_a_roll_back_neither_repeats_nor_loses_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Processes die during the roll-back, right after it, and steps later."""
    settings = {"steps": 12, "save_every": 5, "optimizer": AdamW(), "schedule": Schedule(warmup=2), "average": 0.9}
    poison(monkeypatch, 0, [14, 17])  # steps 8 and 9
    expected = train_run(toy(tmp_path / "uninterrupted", **settings))
    assert [line["step"] for line in metric_lines(expected, "rolled-back")] == [8, 9]
    spoilt, calls = inputs.augment, []

    def deadly(*arguments: Any, **options: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) in (15, 18, 30, 33, 40):
            raise MemoryError
        return spoilt(*arguments, **options)

    monkeypatch.setattr(inputs, "augment", deadly)
    deaths = 0
    while not (tmp_path / "run" / "model.json").exists():
        try:
            train_run(toy(tmp_path / "run", **settings))
        except MemoryError:
            deaths += 1
    assert deaths > 3
    assert_same_end(tmp_path / "run", expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_images_are_logged_once_however_often_a_run_is_killed(
    workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for index in range(40):
        folder = tmp_path / "photos" / ("test" if index > 35 else "train") / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image = encode(np.roll(scene(16, 16), index, axis=1), "PNG")
        (folder / f"{index:02d}\u2028.png").write_bytes(image[:50] if index in (3, 20, 31) else image)
    data = open_data(tmp_path / "photos")
    settings = {
        "data": str(tmp_path / "photos"),
        "image": (16, 16),
        "channels": 3,
        "batch": 4,
        "micro": 4,
        "steps": 14,
        "save_every": 4,
        "max_failed": 0.2,
        "workers": workers,
    }
    expected = train_run(toy(tmp_path / "uninterrupted", **settings), data)
    assert len(metric_lines(expected, "left-out")) == 3
    calls = []

    def deadly(*arguments: Any, **options: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) in (3, 10, 19):
            raise MemoryError
        return augment(*arguments, **options)

    monkeypatch.setattr(inputs, "augment", deadly)
    for _ in range(3):
        with pytest.raises(MemoryError):
            train_run(toy(tmp_path / "run", **settings), data)
    train_run(toy(tmp_path / "run", **settings), data)
    assert_same_end(tmp_path / "run", expected)


# Signals


@pytest.mark.parametrize("sent", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM] * 3, [signal.SIGUSR1]], ids=str)
def test_a_signal_saves_a_checkpoint_and_says_how_to_resume(
    sent: list[signal.Signals], uninterrupted: Path, tmp_path: Path
):
    """Ctrl-C reaches the data workers, too, and so do signals of schedulers, which torchrun sends once more."""
    run = tmp_path / "run"
    started = start_command(
        *command_line(run, **{**EVERYTHING, "workers": 2, "save_every": 100}), start_new_session=True
    )
    while last_step(run) < 4:
        assert started.poll() is None, started.communicate()
    for number in sent:
        os.killpg(started.pid, number)
        time.sleep(0.002)
    _, error = started.communicate(timeout=LONG)
    assert started.returncode == 128 + sent[0]
    message = re.search(r"saved at step (\d+) of 30; vitkit resume (\S+)", error)
    assert message, error
    assert Path(message[2]) == run
    assert "Traceback" not in error
    assert max(states(run)) == f"step-{int(message[1]):08d}"
    assert last_step(run) == int(message[1])
    resume(run, tmp_path / "log")
    assert metric_lines(run) == metric_lines(uninterrupted)
    assert same_tensors(weights(run), weights(uninterrupted))


def test_two_signals_at_once_end_a_run_cleanly(tmp_path: Path):
    started = Command(command_line(tmp_path / "run", steps=10_000), tmp_path / "log")
    while last_step(tmp_path / "run") < 2:
        assert started.process.is_alive(), started.output
    os.kill(started.process.pid or 0, signal.SIGSTOP)
    for sent in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        os.kill(started.process.pid or 0, sent)
    assert started.wait() in (130, 143)
    assert "Traceback" not in started.output


# Errors


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("lr = 0.001\n", "lr = 0.01\n"), "lr: 0.001 → 0.01"),
        (("steps = 30\n", "steps = 60\n"), "steps: 30 → 60"),
        (("mixup = 0.2\n", "mixup = 0.4\n"), "augment.mixup: 0.2 → 0.4"),
        (('model = "mu/4"\n', 'model = "mu/7"\n'), "model: mu/4 → mu/7"),
        (("\nseed = 0\n", "\nseed = 1\n"), "seed: 0 → 1"),
    ],
)
def test_changed_settings_are_an_error_that_shows_them(
    change: tuple[str, str], expected: str, copy: Path, capsys: pytest.CaptureFixture[str]
):
    config = copy / "config.toml"
    assert config.read_text().count(change[0]) == 1
    config.write_text(config.read_text().replace(*change))
    before = states(copy)
    message = error_of(capsys, "resume", str(copy))
    assert "was started with other settings" in message
    assert expected in message
    assert message.count("→") == 1
    assert states(copy).keys() == before.keys()


def test_settings_that_do_not_change_the_result_may_change(copy: Path, uninterrupted: Path, tmp_path: Path):
    config = copy / "config.toml"
    config.write_text(config.read_text().replace("save_every = 3\n", "save_every = 13\n"))
    moved = copy.rename(tmp_path / "elsewhere")
    resume(moved, tmp_path / "log", "--workers", "1", "--device", "cpu")
    assert metric_lines(moved) == metric_lines(uninterrupted)
    assert same_tensors(weights(moved), weights(uninterrupted))


def test_a_run_with_too_many_broken_images_says_how_to_resume_without_them(tmp_path: Path):
    for index in range(30):
        folder = tmp_path / "photos" / ("test" if index > 25 else "train") / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image = encode(np.roll(scene(16, 16), index, axis=1), "PNG")
        (folder / f"{index}.png").write_bytes(image[:50] if index in (3, 20) else image)
    run = tmp_path / "run"
    started = Command(command_line(run, data=str(tmp_path / "photos"), image=16, channels=3, steps=6), tmp_path / "log")
    assert started.wait() == 3
    assert f"  or       max_failed = 0.2 in {run}/config.toml, then vitkit resume {run}: skips them" in started.output
    config = run / "config.toml"
    config.write_text(config.read_text().replace("max_failed = 0.01\n", "max_failed = 0.2\n"))
    resume(run, tmp_path / "log")
    assert len(metric_lines(run, "left-out")) == 2


def test_too_many_broken_images_before_the_first_step_leave_no_folder(tmp_path: Path):
    for index in range(24):
        folder = tmp_path / "photos" / "train" / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image = encode(np.roll(scene(16, 16), index, axis=1), "PNG")
        (folder / f"{index}.png").write_bytes(image[:50] if index % 4 < 2 else image)
    run = tmp_path / "run"
    started = Command(command_line(run, data=str(tmp_path / "photos"), image=16, channels=3, steps=6), tmp_path / "log")
    assert started.wait() == 3
    [share] = re.findall(r"  or +--set max_failed=(\S+) skips them", started.output)
    assert not run.exists()
    repeated = Command(
        command_line(run, data=str(tmp_path / "photos"), image=16, channels=3, steps=6, max_failed=float(share)),
        tmp_path / "log",
    )
    assert repeated.wait() == 0, repeated.output


def test_changed_data_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for index in range(20):
        folder = tmp_path / "photos" / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index}.png").write_bytes(encode(np.roll(scene(16, 16), index, axis=1), "PNG"))
    run = tmp_path / "run"
    started = Command(
        command_line(run, data=str(tmp_path / "photos"), image=16, channels=3, steps=6),
        tmp_path / "log",
        dies_at="vitkit.train.inputs:augment",
        after=7,
    )
    assert started.wait() == -signal.SIGKILL, started.output
    image = tmp_path / "photos" / "a" / "4.png"
    image.rename(tmp_path / "photos" / "b" / "4.png")
    assert "is not what" in error_of(capsys, "resume", str(run))
    (tmp_path / "photos" / "b" / "4.png").rename(image)
    resume(run, tmp_path / "log")


def test_a_folder_in_use_is_locked_until_its_run_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    started = Command(command_line(run, steps=10_000, workers=2), tmp_path / "log")
    while last_step(run) < 2:
        assert started.process.is_alive(), started.output
    assert f"{run} is in use by another process" in error_of(capsys, "resume", str(run))
    assert "holds a run already" in error_of(capsys, *command_line(run))
    assert started.process.is_alive()
    started.kill()
    with (run / ".lock").open("a") as lock:  # although data workers live on for a while
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    RunFolder.open(run).close()


def test_a_finished_run_is_not_overwritten(uninterrupted: Path, capsys: pytest.CaptureFixture[str]):
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*") if path.name != ".lock"}
    main(["resume", str(uninterrupted)])
    assert f"{uninterrupted} is finished; nothing is left to do" in capsys.readouterr().out
    assert "holds a finished run already; nothing was changed" in error_of(capsys, *command_line(uninterrupted))
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*") if path.name != ".lock"} == before


def test_resuming_another_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert "does not exist" in error_of(capsys, "resume", str(tmp_path / "nowhere"))
    (tmp_path / "photos").mkdir()
    message = error_of(capsys, "resume", str(tmp_path / "photos"))
    assert "is not a run folder" in message
    assert "config.toml" in message


# Folders that cannot be written


def test_a_folder_that_cannot_be_made_is_an_error_before_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("not a folder")
    assert "cannot be made" in error_of(capsys, *command_line(tmp_path / "file" / "run"))
    assert "is a file, not a folder" in error_of(capsys, *command_line(tmp_path / "file"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_an_error_before_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    tmp_path.chmod(0o500)
    assert "cannot be made" in error_of(capsys, *command_line(tmp_path / "run"))


def test_a_disk_without_room_for_the_checkpoints_is_an_error_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12 - 10**6, 10**6))
    message = error_of(capsys, *command_line(tmp_path / "run", steps=4))
    assert "on a disk with 1 MiB free; this run needs" in message
    assert last_step(tmp_path / "run") == 0


def test_a_disk_that_fills_up_loses_nothing(uninterrupted: Path, tmp_path: Path):
    """The first checkpoint, without moments, fits; the system refuses to write the next one."""
    run = tmp_path / "run"
    started = Command(command_line(run, **EVERYTHING), tmp_path / "log", file_limit=300_000)
    assert started.wait() == 2, started.output
    assert "the checkpoint of step 3 cannot be written" in started.output
    assert "File too large" in started.output
    assert f"vitkit resume {run}" in started.output
    assert "Traceback" not in started.output
    assert list(states(run)) == ["step-00000000"]
    resume(run, tmp_path / "log")
    assert_same_end(run, uninterrupted)
