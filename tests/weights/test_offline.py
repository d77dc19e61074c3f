"""Without a network, everything that the package holds works, and no verb tries to reach one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitkit.data.sources.open import open_data

# Every attempt to reach another machine, or to look up a name, is written to a file and fails; data workers inherit it.
BLOCKED = """
import os, socket
def refuse(address):
    with open(os.environ["ATTEMPTS"], "a") as file:
        print(address, file=file)
    raise OSError(101, "Network is unreachable")
class Socket(socket.socket):
    def connect(self, address):
        return super().connect(address) if self.family == socket.AF_UNIX else refuse(address)
    def connect_ex(self, address):
        return super().connect_ex(address) if self.family == socket.AF_UNIX else refuse(address)
    def sendto(self, *arguments):
        return super().sendto(*arguments) if self.family == socket.AF_UNIX else refuse(arguments[-1])
socket.socket = Socket
socket.getaddrinfo = socket.gethostbyname = lambda host, *arguments, **options: refuse(host)
"""

RUN_VERBS = """
import shlex, sys
from vitkit.cli.main import main
for line in sys.stdin:
    print("$", line.strip(), flush=True)
    main(shlex.split(line))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with photos of two classes that ImageNet has, too."""
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "sitecustomize.py").write_text(BLOCKED)
    split = open_data("fashion").splits["test"]
    for name, label in (("sandal", "sandal"), ("purse", "bag")):
        rows = [row for row, key in enumerate(split.keys) if f"/{label}/" in key][:6]
        (tmp_path / "photos" / name).mkdir(parents=True)
        for row in rows:
            pixels = np.asarray(split.read(row))[..., 0]
            Image.fromarray(pixels).convert("RGB").resize((40, 32)).save(tmp_path / "photos" / name / f"{row}.png")
    return tmp_path


def offline(folder: Path, command: list[str], **options: str) -> subprocess.CompletedProcess[str]:
    """Run a command without a network and without a variable that tells libraries so."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    path = os.pathsep.join([str(folder / "blocked"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        command,
        cwd=folder,
        env={
            **kept,
            "PYTHONPATH": path,
            "ATTEMPTS": str(folder / "attempts"),
            "HF_HOME": str(folder / "cache"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        **options,  # type: ignore[arg-type]
    )


def test_every_verb_takes_ti16_and_none_tries_the_network(folder: Path):
    verbs = """
        fit photos/ --steps 1 --batch 4 --out runs/photos
        predict ti16 photos/sandal
        evaluate ti16 photos/
        probe ti16 photos/ --method knn
        inspect ti16 photos/purse --layer 0 --head 0 --out inside
        convert ti16 own/ --to vitkit
    """
    result = offline(folder, [sys.executable, "-c", RUN_VERBS], input="\n".join(verbs.strip().splitlines()))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "weights ti16; positions kept (14 x 14), linear head 1000 → 2 classes" in result.stdout
    for file in ("runs/photos/report.html", "inside/inspect.html", "own/model.json"):
        assert (folder / file).is_file(), file
    assert not (folder / "attempts").exists(), (folder / "attempts").read_text()


def test_weights_to_be_downloaded_are_an_error_with_their_address(folder: Path):
    result = offline(folder, [sys.executable, "-m", "vitkit", "fit", "photos", "--model", "B/16"])
    assert result.returncode == 2
    address = "https://huggingface.co/timm/vit_base_patch16_224.augreg_in21k/resolve/main"
    for text in (f"{address}/model.safetensors", f"{address}/config.json", "--weights PATH", "--weights none", "ti16"):
        assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert (folder / "attempts").exists()  # the block above works
    assert not (folder / "runs").exists() or not any((folder / "runs").iterdir())
