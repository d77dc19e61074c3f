"""The same command continues its own run after a restart or with --resume, and no other run."""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitkit
from tests.data.sample_images import encode, scene
from tests.train.runs import TOY, Command, command_line, error_of, last_step, metric_lines
from vitkit import atomic
from vitkit.cli.main import main
from vitkit.run_folder import RunError, RunFolder

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS: dict[str, Any] = {"steps": 6, "save_every": 2, "lr": 0.01, "channels": 3}


@pytest.fixture(autouse=True)
def no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for index in range(24):
        name = folder / ("test" if index > 19 else "train") / "ab"[index % 2] / f"{index}.png"
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_bytes(encode(np.roll(scene(28, 28), index, axis=1), "PNG"))
    return folder


def command_of(out: Path, photos: Path, **settings: Any) -> list[str]:
    return command_line(out, data=str(photos), **{**SETTINGS, **settings})


@pytest.fixture(scope="module")
def uninterrupted(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    main(command_of(run, photos))
    return run


@pytest.fixture(scope="module")
def killed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after some steps; tests copy it."""
    folder = tmp_path_factory.mktemp("killed")
    killed_run(command_of(folder / "run", photos), folder / "log", "vitkit.train.checkpoint:keep_only", after=3)
    assert 0 < last_step(folder / "run") <= 6
    assert not (folder / "run" / "model.json").exists()
    return folder / "run"


def killed_run(command: list[str], log: Path, moment: str, after: int = 1) -> None:
    """Start a run in a process of its own, which kills itself at a moment."""
    started = Command(command, log, dies_at=moment, after=after)
    assert started.wait() == -signal.SIGKILL, started.output


@pytest.fixture
def copy(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "copy"))


def assert_same(run: Path, other: Path) -> None:
    assert metric_lines(run) == metric_lines(other)
    assert (run / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert (run / "report.html").is_file()


@pytest.mark.parametrize(
    "by", ["--resume", "SLURM_RESTART_COUNT", pytest.param("TORCHELASTIC_RESTART_COUNT", marks=pytest.mark.slow)]
)
def test_the_same_command_continues_its_run(
    photos: Path,
    by: str,
    copy: Path,
    uninterrupted: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    command = command_of(copy, photos)
    message = error_of(capsys, *command)
    assert "holds a run already" in message
    assert f"vitkit resume {copy}, or the same command with --resume" in message
    if not by.startswith("--"):
        monkeypatch.setenv(by, "1")
    main([*command, by] if by.startswith("--") else command)
    assert f"continued {copy}: " in capsys.readouterr().out
    assert_same(copy, uninterrupted)


def test_a_finished_run_is_left_as_it_is(
    photos: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*")}
    main([*command_of(uninterrupted, photos), "--resume", "--json"])
    printed = capsys.readouterr()
    assert f"finished  {uninterrupted} is finished; nothing is left to do" in printed.err
    assert json.loads(printed.out)["evaluation"]["images"] > 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    main(command_of(uninterrupted, photos))
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*")} == before


@pytest.mark.parametrize("finished", [False, True])
def test_a_run_with_other_settings_is_refused_with_what_differs(
    photos: Path, finished: bool, copy: Path, uninterrupted: Path, capsys: pytest.CaptureFixture[str]
):
    run = uninterrupted if finished else copy
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    message = error_of(capsys, *command_of(run, photos, lr=0.02, model="mu/7"), "--resume")
    assert "holds a run that was started with other settings; nothing was changed" in message
    assert "lr: 0.01 → 0.02" in message
    assert "model: mu/4 → mu/7" in message
    assert message.count("→") == 2
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_settings_that_do_not_change_the_result_are_those_of_the_command(photos: Path, copy: Path, uninterrupted: Path):
    config = copy / "config.toml"
    config.write_text(config.read_text().replace("max_failed = 0.01\n", "max_failed = 0.2\n"))  # by hand
    main([*command_of(copy, photos, save_every=100, workers=1), "--resume"])
    assert_same(copy, uninterrupted)
    continued = RunFolder(copy).config()
    assert continued.max_failed == 0.2


def test_other_images_under_the_same_name_are_refused(
    copy: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "train" / "a" / "2.png").unlink()
    message = error_of(capsys, *command_of(copy, tmp_path / "photos"), "--resume")
    assert "is not what" in message
    assert "images or classes have changed" in message


@pytest.mark.parametrize(
    "moment",
    [
        "vitkit.run:describe_data",  # before the record
        pytest.param("vitkit.train.trainer:initial_model", marks=pytest.mark.slow),  # after it
        pytest.param("vitkit.train.checkpoint:write_record", marks=pytest.mark.slow),  # first checkpoint half written
    ],
)
def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over_in_its_folder(
    photos: Path, moment: str, uninterrupted: Path, tmp_path: Path
):
    run = tmp_path / "run"
    command = command_of(run, photos)
    killed_run(command, tmp_path / "log", moment)
    assert (run / "config.toml").is_file()
    main([*command, "--resume"])
    assert_same(run, uninterrupted)
    record, expected = RunFolder(run).record(), RunFolder(uninterrupted).record()
    assert record.keys() == expected.keys()
    assert record["data"] == expected["data"]


@pytest.mark.slow
def test_resume_starts_a_run_where_there_is_none(photos: Path, uninterrupted: Path, tmp_path: Path):
    main([*command_of(tmp_path / "run", photos), "--resume"])
    assert_same(tmp_path / "run", uninterrupted)


def test_a_continued_run_waits_for_a_process_that_is_still_ending(copy: Path, capsys: pytest.CaptureFixture[str]):
    """Its lock is released after more time than other commands wait."""
    with (copy / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="is in use by another process"):
            RunFolder.open(copy)
        ending = threading.Timer(atomic.PATIENCE + 0.3, lambda: fcntl.flock(held, fcntl.LOCK_UN))
        ending.start()
        RunFolder.open(copy, patience=60).close()
        ending.join()
    assert f"waiting   {copy} is in use; up to 60 s for its process to end" in capsys.readouterr().err


def test_resume_without_out_is_an_error_and_a_restart_without_it_says_that_a_run_begins(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    command = command_of(tmp_path, photos)
    del command[2:4]
    assert "--resume continues the run in a folder, and none is named" in error_of(capsys, *command, "--resume")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    main(command)
    assert "requeue 1 of Slurm, and a new run: without --out, no run is continued" in capsys.readouterr().out


def test_python_continues_a_run_as_well(photos: Path, copy: Path, uninterrupted: Path):
    run = vitkit.fit(photos, resume=True, out=copy, **{**TOY, **SETTINGS})
    assert_same(run.path, uninterrupted)
