"""Standard streams that are closed, full or without a reader: words instead of tracebacks, and no run is lost."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_run import COMPLETE, TINY, write_photos

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")

VITKIT = shlex.join([sys.executable, "-m", "vitkit"])


def shell(command: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done


@pytest.mark.parametrize("verb", ["--help", "--version", "fit --help", "list settings", "cost mu/4"])
def test_output_that_cannot_be_written_is_an_error_in_words(verb: str):
    done = shell(f"{VITKIT} {verb} > /dev/full")
    assert done.returncode == 2
    assert "standard output cannot be written: No space left on device." in done.stderr


@pytest.mark.parametrize("verb", ["list settings", "cost mu/4"])
def test_a_reader_that_has_gone_ends_the_verb_quietly(verb: str):
    done = shell(f"{VITKIT} {verb} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (141, "")


def test_closed_streams_are_not_taken_for_files(tmp_path: Path):
    done = shell(f"{VITKIT} list models >&- <&-")
    assert done.returncode == 2
    assert "standard output cannot be written: Bad file descriptor." in done.stderr
    assert shell(f"{VITKIT} list models 2>&- <&-").stdout.startswith(shell(f"{VITKIT} list models").stdout[:40])
    assert shell(f"{VITKIT} list models >&- 2>&- <&-").returncode == 2


def test_a_list_on_closed_standard_input_names_no_images():
    done = shell(f"{VITKIT} predict ti16 - <&-")
    assert done.returncode == 2
    assert "standard input names no images." in done.stderr


@pytest.mark.parametrize(
    ("streams", "code", "told"),
    [
        ("| head -n 1; exit ${PIPESTATUS[0]}", 0, "nobody reads the output any more; the work goes on"),
        ("> /dev/full", 2, "standard output cannot be written: No space left on device; the work itself is complete."),
        (">&- 2>&- <&-", 0, ""),
    ],
)
def test_a_run_goes_on_without_its_messages(streams: str, code: int, told: str, tmp_path: Path):
    photos, run = write_photos(tmp_path / "photos", 6), tmp_path / "run"
    done = shell(f"{VITKIT} fit {photos} {shlex.join(TINY)} --out {run} {streams}")
    assert done.returncode == code
    assert told in done.stderr
    assert {*os.listdir(run)} >= COMPLETE


def test_the_error_of_a_run_without_output_is_its_own(tmp_path: Path):
    done = shell(f"{VITKIT} fit {tmp_path / 'nowhere'} > /dev/full")
    assert done.returncode == 2
    assert "does not exist" in done.stderr
    assert "complete" not in done.stderr


def test_output_that_does_not_wait_and_is_full_for_now_is_written_later():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    full = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            full += os.write(writer, bytes(4096))
    process = subprocess.Popen(
        [sys.executable, "-m", "vitkit", "list", "settings"], stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    with open(reader, "rb") as file:
        text = file.read()[full:].decode()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait() == 0
    assert "augment.mixup" in text
    assert text.endswith("\n")
