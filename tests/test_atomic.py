"""Files are written completely or not at all, with the permissions of any new file, and locked by one process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from vitkit.atomic import lock, replacing, write_text
from vitkit.errors import ConfigError, VitkitError

HOLD = "import sys; from vitkit.atomic import lock; file = open(sys.argv[1], 'ab'); print(lock(file)); input()"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o022, 0o077, 0o002])
def umask(request: pytest.FixtureRequest):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_replaced_file_has_the_permissions_of_a_new_one(umask: int, tmp_path: Path):
    write_text(tmp_path / "a.txt", "first")
    assert mode(tmp_path / "a.txt") == 0o666 & ~umask
    with replacing(tmp_path / "a.txt") as temporary:  # as a library may: a private file instead of the temporary one
        temporary.unlink()
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
    assert mode(tmp_path / "a.txt") == 0o666 & ~umask


def test_permissions_are_right_while_another_thread_creates_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The umask belongs to the process: changing it for a moment gives files of other threads wrong permissions."""
    umask, stop = os.umask, threading.Event()

    def slow_umask(mask: int) -> int:  # so that the moment is long enough for the other thread
        before = umask(mask)
        time.sleep(0.001)
        return before

    def replace_files() -> None:
        while not stop.is_set():
            write_text(tmp_path / "replaced.txt", "text")

    before = umask(0o027)
    monkeypatch.setattr(os, "umask", slow_umask)
    thread = threading.Thread(target=replace_files)
    thread.start()
    try:
        paths = [tmp_path / f"{number}.txt" for number in range(500)]
        for path in paths:
            path.touch()
            time.sleep(0.0001)
    finally:
        stop.set()
        thread.join()
        umask(before)
    assert {mode(path) for path in paths} == {0o640}
    assert mode(tmp_path / "replaced.txt") == 0o640


def test_an_error_leaves_the_old_file_and_no_temporary_one(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text(f"{1 / 0}")
    with pytest.raises(ConfigError, match=r"a.txt cannot be written: No space left"), replacing(path, ConfigError):
        raise OSError(28, "No space left on device")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_lock_is_held_by_one_process_until_it_ends(tmp_path: Path):
    path = tmp_path / "file"
    with subprocess.Popen([sys.executable, "-uc", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        with path.open("ab") as file:
            assert not lock(file)
            other.kill()
            other.wait()
            assert lock(file)
            with path.open("ab") as second:
                assert not lock(second)  # nor twice in one process
    with path.open("ab") as file:
        assert lock(file)


def test_a_forked_child_does_not_keep_the_lock_or_move_the_parents_file(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"a line\nanother\n")
    (from_child, to_parent), (from_parent, to_child) = os.pipe(), os.pipe()
    with path.open("rb+") as file:
        assert lock(file)
        assert file.readline() == b"a line\n"
        child = os.fork()
        if child == 0:  # pragma: no cover
            os.write(to_parent, b"started")
            os.close(to_child)
            os.read(from_parent, 1)  # lives on until the parent closes its end
            file.write(b"from the child")
            file.close()
            os._exit(0)
        assert os.read(from_child, 7) == b"started"
        assert file.readline() == b"another\n"
    try:
        with path.open("rb+") as file:
            assert lock(file), "the child still holds it"
    finally:
        os.close(to_child)
        os.waitpid(child, 0)
        for pipe in (from_child, to_parent, from_parent):
            os.close(pipe)
    assert path.read_bytes() == b"a line\nanother\n"


def test_a_file_system_without_locks_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def flock(file: object, flags: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("vitkit.atomic.fcntl.flock", flock)
    with (tmp_path / "file").open("ab") as file:
        assert lock(file)


def test_a_pipe_or_device_is_never_replaced_by_a_file(tmp_path: Path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(VitkitError, match="is not a regular file, and cannot be written"):
        write_text(pipe, "text")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(tmp_path) == [pipe.name]


def test_a_child_forked_just_before_a_kill_gives_the_lock_back(tmp_path: Path):
    """Until the child runs for the first time it has the lock; a first hook that sleeps makes that moment long."""
    path = tmp_path / "file"
    program = """
import os, signal, sys, time
os.register_at_fork(after_in_child=lambda: time.sleep(0.7))  # hooks are called in the order of their registration
from vitkit.atomic import lock
file = open(sys.argv[1], "ab")
assert lock(file)
if os.fork() == 0:
    time.sleep(5)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program, str(path)]).returncode == -signal.SIGKILL
    with path.open("ab") as file:
        assert not lock(file, patience=0)
        assert lock(file)
