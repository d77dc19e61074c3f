"""Temporary files of killed processes are removed by the next one; those of living processes stay, and other files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitkit.atomic import replacing, temporary_folder, write_text
from vitkit.run_folder import RunFolder
from vitkit.temporary_names import ABANDONED, remove_abandoned, temporary_path

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="/proc tells when a process was started")

WRITE = """
import sys, time
from pathlib import Path
from vitkit.atomic import replacing, temporary_folder
with replacing(Path(sys.argv[1]) / "model.safetensors") as file, temporary_folder(Path(sys.argv[1])) as folder:
    file.write_bytes(bytes(1000))
    (folder / "inside").write_bytes(bytes(1000))
    print("writing", flush=True)
    time.sleep(60)
"""


def start_writing(folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", WRITE, folder], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    return process


def test_what_a_killed_process_was_writing_is_removed_by_the_next_one(tmp_path: Path):
    first, second = start_writing(tmp_path), start_writing(tmp_path)
    assert len(os.listdir(tmp_path)) == 4
    first.kill()
    first.wait()
    try:
        remove_abandoned(tmp_path)
        left = os.listdir(tmp_path)
        assert len(left) == 2
        assert all(f"-{second.pid}-" in name for name in left)
    finally:
        second.kill()
        second.wait()
    write_text(tmp_path / "other.txt", "text")
    assert os.listdir(tmp_path) == ["other.txt"]


def test_a_process_that_was_killed_and_not_waited_for_has_ended(tmp_path: Path):
    process = start_writing(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    while b") Z " not in Path(f"/proc/{process.pid}/stat").read_bytes():
        time.sleep(0.01)
    remove_abandoned(tmp_path)
    assert os.listdir(tmp_path) == []
    process.wait()


def test_a_later_process_with_the_same_number_is_another_one(tmp_path: Path):
    own = temporary_path(tmp_path)
    prefix, machine, process, started, token = own.name.split("-")
    own.touch()
    (tmp_path / "-".join((prefix, machine, process, str(int(started) + 1), token))).touch()
    remove_abandoned(tmp_path)
    assert os.listdir(tmp_path) == [own.name]


def test_a_file_of_another_machine_is_removed_after_a_day(tmp_path: Path):
    name = temporary_path(tmp_path).name.split("-", 2)[2]
    old, new = (tmp_path / f".vitkit-{machine}-{name}" for machine in ("00000000", "00000001"))
    for path, age in ((old, ABANDONED + 60), (new, ABANDONED - 60)):
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    remove_abandoned(tmp_path)
    assert os.listdir(tmp_path) == [new.name]


def test_files_with_other_names_are_left_alone(tmp_path: Path):
    names = [".vitkit-1-2-3-4.tmp", ".vitkit-0a1b2c3d-1-1-0a1b2c3d", "vitkit-0a1b2c3d-1-1-0a1b2c3d.tmp", ".tmp"]
    for name in names:
        (tmp_path / name).touch()
    remove_abandoned(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(names)


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    name = temporary_path(tmp_path).name.replace(f"-{os.getpid()}-", "-4194305-")  # no process has this number
    (tmp_path / name).symlink_to(tmp_path / "kept")
    remove_abandoned(tmp_path)
    assert os.listdir(tmp_path) == ["kept"]
    assert (tmp_path / "kept" / "file").exists()


def test_a_run_folder_is_cleaned_when_it_is_locked(tmp_path: Path):
    run = tmp_path / "run"
    (run / "checkpoints" / ".saving").mkdir(parents=True)
    (run / "checkpoints" / ".leaving").mkdir()
    (run / "rates/0.1/checkpoints/.saving").mkdir(parents=True)
    (run / "config.toml").touch()
    kept = [".wandb-id", ".mine.1a2b3c4d", "report.html"]
    for name in (*kept, ".model.safetensors.1a2b3c4d", ".seen-by-all-7"):  # as an earlier version named it
        (run / name).touch()
    process = start_writing(run)
    process.kill()
    process.wait()
    folder = RunFolder.open(run)
    try:
        files = {str(path.relative_to(run)) for path in run.rglob("*") if not path.is_dir()}
        assert files == {*kept, ".lock", "config.toml"}
        assert not [*run.rglob(".saving"), *run.rglob(".leaving")]
    finally:
        folder.close()


def test_nothing_is_left_where_no_process_is_killed(tmp_path: Path):
    with temporary_folder(tmp_path) as folder:
        (folder / "file").touch()
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a") as file:
        file.write_text(f"{1 / 0}")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [PermissionError(1, "hidden"), FileNotFoundError(2, "hidden")])
def test_processes_that_the_system_hides_are_alive(error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Mounted with hidepid, /proc does not show the processes of other users."""
    own = temporary_path(tmp_path)
    own.touch()

    def hidden(path: object, *arguments: object) -> object:
        raise error

    monkeypatch.setattr("vitkit.temporary_names.open", hidden, raising=False)
    remove_abandoned(tmp_path)
    assert os.listdir(tmp_path) == [own.name]


LOCK = """
import sys, time
from pathlib import Path
from vitkit.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.lock()
(folder.path / "checkpoints" / ".saving").mkdir(parents=True)
print("locked", flush=True)
time.sleep(60)
"""


def test_a_run_inside_the_folder_that_another_process_is_at_is_left_alone(tmp_path: Path):
    (tmp_path / "inner").mkdir()
    holder = subprocess.Popen([sys.executable, "-c", LOCK, tmp_path / "inner"], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"locked\n"
    half = tmp_path / "inner" / "checkpoints" / ".saving"
    for alive in (True, False):
        folder = RunFolder(tmp_path)
        folder.lock()
        folder.close()
        assert half.exists() == alive
        holder.kill()
        holder.wait()
