"""Pipes, sockets, devices and files of the kernel under the name of a file are refused by name, never waited for."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import vitkit
from vitkit.regular_file import NotRegularFile, check_regular, open_regular

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/zero and /proc")

# In a process of its own, with a limit of time: what is tested is that nothing waits. One use a line.
USE_ALL = """
import json, shutil, sys
from pathlib import Path
import vitkit
from vitkit.config import toml
from vitkit.data.sources.open import open_data
from vitkit.errors import VitkitError
from vitkit.evaluate.matching import read_labels
from vitkit.export.metadata import read_metadata
from vitkit.predict.inputs import pixels_of
from vitkit.predict.journal import Journal
from vitkit.run_folder import RunFolder
from vitkit.weights.run_checkpoints import checksum

odd, folder = Path(sys.argv[1]), Path(sys.argv[2])

def placed(name):
    path = folder / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(odd)
    return path

uses = {
    "image": lambda: pixels_of(placed("a.jpg")),
    "manifest": lambda: open_data(placed("a.csv")),
    "zip": lambda: open_data(placed("a.zip")),
    "tar": lambda: open_data(placed("a.tar")),
    "arrays": lambda: open_data(placed("a.npz")),
    "weights": lambda: vitkit.load(placed("a.safetensors")),
    "npz weights": lambda: vitkit.load(placed("b.npz")),
    "exported": lambda: read_metadata(placed("a.onnx")),
    "settings": lambda: toml.read(placed("a.toml")),
    "labels": lambda: read_labels(placed("a.txt"), 3),
    "journal": lambda: Journal(placed("rows.csv.part").with_suffix(""), {}, batch=1, read=dict),
    "metrics": lambda: list(RunFolder(placed("run/metrics.jsonl").parent).metrics()),
    "log": lambda: RunFolder(placed("run/metrics.jsonl").parent).log("step", 1),
    "lock": lambda: RunFolder(placed("run/.lock").parent).lock(),
    "record": lambda: RunFolder(placed("run/run.json").parent).record(),
    "checksum": lambda: checksum(placed("shard.safetensors")),
}
found = {}
for name, use in uses.items():
    try:
        use()
        found[name] = "accepted"
    except (VitkitError, OSError) as error:
        found[name] = str(error).splitlines()[0]
print(json.dumps(found))
"""


@pytest.fixture
def odd_files(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.getcwd()
        os.chdir(tmp_path)  # the path of a socket has to be short
        listener.bind("socket")
        os.chdir(before)
        yield {
            "a pipe": tmp_path / "pipe",
            "a socket": tmp_path / "socket",
            "a device": Path("/dev/zero"),
            "a file of the kernel": Path("/proc/version"),
        }


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a file of the kernel"])
def test_whatever_reads_a_file_refuses_what_is_none(kind: str, odd_files: dict[str, Path], tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", USE_ALL, odd_files[kind], folder], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: text for name, text in found.items() if f"it is {kind}, not a regular file" not in text} == {}


def test_each_kind_is_named(odd_files: dict[str, Path], tmp_path: Path):
    for kind, path in {**odd_files, "a folder": tmp_path}.items():
        for refuse in (check_regular, open_regular):
            with pytest.raises(NotRegularFile) as caught:
                refuse(path)
            assert caught.value.strerror == f"it is {kind}, not a regular file"
            assert caught.value.filename == str(path)


def test_regular_files_and_links_to_them_open_as_ever(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with open_regular(tmp_path / "file", "w", encoding="utf-8") as file:
        file.write("text")
    with open_regular(tmp_path / "link", "a", encoding="utf-8") as file:
        file.write(" more")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"text more"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")


def test_a_named_pipe_among_images_is_named_and_the_others_are_read(odd_files: dict[str, Path], tmp_path: Path):
    from PIL import Image

    for name in ("ant", "bee"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name / "a.png")
    (tmp_path / "photos/ant/pipe.png").symlink_to(odd_files["a pipe"])
    (tmp_path / "photos/ant/kernel.png").symlink_to(odd_files["a file of the kernel"])
    report = vitkit.check(tmp_path / "photos")
    assert report.bad == [("ant/kernel.png", "cannot be read: it is a file of the kernel, not a regular file.")]
    assert any("not regular files, skipped: ant/pipe.png" in remark for remark in report.remarks)
