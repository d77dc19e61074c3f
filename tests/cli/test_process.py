"""The process of a command: it ends at once, with the right code, and after everything that others left for the end."""

from __future__ import annotations

import gc
import pstats
import subprocess
import sys
from pathlib import Path

import pytest

from vitkit.cli.process import COLLECTIONS_AT_START, OBJECTS_AT_START, collect_rarely_at_first

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


def test_callbacks_of_earlier_imports_are_called_and_buffers_written(tmp_path: Path):
    code = "import atexit, sys\natexit.register(lambda: print('earlier'))\n" + BODY.format(ends="print('buffered')")
    with (tmp_path / "out").open("w") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True, timeout=60)
    assert (tmp_path / "out").read_text().splitlines() == ["buffered", "thread", "callback", "earlier"]


def test_a_profiler_gets_what_it_has_measured(tmp_path: Path):
    profile = tmp_path / "profile"
    command = [sys.executable, "-m", "cProfile", "-o", str(profile), "-m", "vitkit", "--version"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert pstats.Stats(str(profile)).total_calls > 100  # type: ignore[attr-defined]


def test_the_garbage_collector_runs_rarely_at_first_and_then_as_before():
    usual, callbacks = gc.get_threshold(), [*gc.callbacks]
    collect_rarely_at_first()
    collections = sum(one["collections"] for one in gc.get_stats())
    kept = [[] for _ in range(2 * OBJECTS_AT_START)]
    assert sum(one["collections"] for one in gc.get_stats()) - collections in (1, 2)
    kept += [[] for _ in range(COLLECTIONS_AT_START * OBJECTS_AT_START)]
    assert gc.get_threshold() == usual
    assert gc.callbacks == callbacks
