"""The file with the API key: pipes work, and nothing that never ends is waited for or read into memory."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from vitkit.cli import key_file
from vitkit.cli.serve import read_api_key
from vitkit.errors import ConfigError

KEY = "a-key-of-a-pipe"
POSIX = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes and devices are files of POSIX")


@pytest.fixture(autouse=True)
def _no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VITKIT_API_KEY", raising=False)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@POSIX
def test_a_pipe_that_nobody_writes_into_is_not_waited_for_for_ever(pipe: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(key_file, "SECONDS", 0.2)
    with pytest.raises(ConfigError, match=r"nothing was written into it within 0.2 s"):
        read_api_key(pipe)


@POSIX
def test_a_pipe_whose_writer_never_ends_is_not_waited_for_for_ever(pipe: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(key_file, "SECONDS", 0.2)
    descriptor = os.open(pipe, os.O_RDWR)
    try:
        with pytest.raises(ConfigError, match="nothing was written"):
            read_api_key(pipe)
        os.write(descriptor, KEY.encode())
        with pytest.raises(ConfigError, match="its end was not written"):
            read_api_key(pipe)
    finally:
        os.close(descriptor)


@POSIX
def test_the_key_of_a_named_pipe_is_read_whenever_it_is_written(pipe: Path):
    def write() -> None:
        with pipe.open("w") as file:  # waits for the reader
            for letter in KEY:
                file.write(letter)
                file.flush()

    writer = threading.Thread(target=write)
    writer.start()
    assert read_api_key(pipe) == KEY
    writer.join()


@POSIX
@pytest.mark.parametrize("command", [f"echo {KEY}", f"sleep 0.3; echo {KEY}"])
def test_the_key_of_a_command_is_read(command: str):
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert read_api_key(Path(f"/dev/fd/{process.stdout.fileno()}")) == KEY


@POSIX
def test_devices_and_directories_are_refused_by_name(tmp_path: Path):
    for file, kind in ((Path("/dev/zero"), "a device"), (Path("/dev/null"), "a device"), (tmp_path, "a directory")):
        with pytest.raises(ConfigError, match=f"{file} is {kind}"):
            read_api_key(file)


def test_what_is_too_long_for_a_key_is_not_read_to_its_end(tmp_path: Path):
    file = tmp_path / "key"
    file.write_text("k" * key_file.MAX_BYTES)
    assert read_api_key(file) == "k" * key_file.MAX_BYTES
    with file.open("wb") as large:
        large.truncate(2**40)  # a sparse file; a terabyte fits into no memory
    with pytest.raises(ConfigError, match=r"longer than 4,096 bytes is no key"):
        read_api_key(file)


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"missing cannot be read: No such file"):
        read_api_key(tmp_path / "missing")
    (tmp_path / "key").write_bytes(b"\xff\xfe" * 8)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_api_key(tmp_path / "key")
    (tmp_path / "key").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be used"):
        read_api_key(tmp_path / "key")
