"""The process of a command: it ends at once, with the right code, and after everything that others left for the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BODY = """
import atexit, sys, threading, time, types
import vitkit.cli.main as command_line
from vitkit.cli.process import main

def verb():
    atexit.register(lambda: print("callback"))
    threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
    {ends}

class Freed:
    def __del__(self):
        print("taken apart")

command_line.main = verb
command_line.freed = Freed()
main()
"""


def run(ends: str) -> subprocess.CompletedProcess[str]:
    code = BODY.format(ends=ends)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("ends", "code", "error"),
    [
        ("return", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(2)", 2, ""),
        ("sys.exit('a text')", 1, "a text\n"),
        ("raise KeyboardInterrupt", 130, "Traceback"),
        ("raise ValueError('a bug')", 1, "Traceback"),
    ],
)
def test_a_command_ends_with_its_code_once_threads_and_callbacks_are_done(ends: str, code: int, error: str):
    done = run(ends)
    assert done.returncode == code
    assert done.stdout.splitlines() == ["thread", "callback"]
    assert done.stderr == error or (error == "Traceback" and done.stderr.startswith("Traceback"))


def test_output_that_is_still_buffered_is_written(tmp_path: Path):
    with (tmp_path / "out").open("w") as file:
        subprocess.run([sys.executable, "-m", "vitkit", "--version"], stdout=file, check=True, timeout=60)
    assert (tmp_path / "out").read_text().startswith("vitkit ")
