"""A verb imports what it uses: torch's compiler, sharding and plotting cost half a second to a second and a half each.

Each verb does its real work in a process of its own, which reports the modules that it has imported beyond those of
`import torch`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitkit

COMPILER = {"torch._dynamo", "torch._inductor", "torch.onnx", "triton"}
SHARDING = {"torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.checkpoint", "sympy"}
DRAWING = {"matplotlib", "jinja2"}
OTHERS = {"torch.export", "pyarrow", "scipy", "sklearn", "onnxruntime", "fastapi", "torchmetrics", "transformers"}
HEAVY = COMPILER | SHARDING | DRAWING | OTHERS

# `import torch` alone may bring some of them, in some versions
SCRIPT = """
import json, sys
import torch
before = set(sys.modules)

def report():
    print(json.dumps({"modules": sorted(set(sys.modules) - before)}), flush=True)

from vitkit.cli.main import main
if sys.argv[1] == "fit":
    from vitkit.train.step import Step
    step = Step.__call__

    def reporting_step(*arguments):
        result = step(*arguments)
        report()
        return result

    Step.__call__ = reporting_step
try:
    main(sys.argv[1:])
finally:
    report()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small model and a small data set."""
    random = np.random.default_rng(0)
    for split in ("train", "test"):
        for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for index in range(3):
                pixels = np.uint8(np.array(colour) + random.integers(0, 25, (30, 40, 3)))
                Image.fromarray(pixels).save(tmp_path / "images" / split / name / f"{index}.png")
    model = vitkit.create("mu/4", classes=2, image=28)
    model.metadata = replace(model.metadata, labels=("blue", "red"))
    vitkit.save(model, tmp_path / "model")
    return tmp_path


def start(folder: Path, command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *command.split(), "--device", "cpu"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def reported_modules(process: subprocess.Popen[str]) -> list[set[str]]:
    """Return the modules of each report, after the process has ended."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    lines = [line for line in output.splitlines() if line.startswith('{"modules"')]
    return [set(json.loads(line)["modules"]) for line in lines]


@pytest.mark.parametrize(
    "command",
    [
        "predict model images/test/red/0.png",
        "embed model images --out vectors.npy",
        "evaluate model images --workers 0",
    ],
)
def test_a_verb_imports_nothing_that_it_does_not_use(command: str, folder: Path):
    (imported,) = reported_modules(start(folder, command))
    assert imported & HEAVY == set()


def test_training_and_its_checkpoints_import_nothing_heavy_and_the_report_imports_what_draws(folder: Path):
    fit = "fit images --model mu/4 --image 28 --weights none --steps 2 --workers 0 --set average=0.9 --out run"
    first_step, *_, end = reported_modules(start(folder, fit))
    assert first_step & HEAVY == set()  # a checkpoint has been written by then
    assert end & HEAVY <= DRAWING
    assert (folder / "run" / "report.html").is_file()


def test_fitting_a_head_imports_nothing_but_what_draws_the_report(folder: Path):
    (imported,) = reported_modules(start(folder, "fit images --weights model --set start=head --workers 0 --out run"))
    assert imported & HEAVY <= DRAWING
    assert (folder / "run" / "report.html").is_file()


def test_serving_imports_a_web_server_and_nothing_heavy_besides(folder: Path):
    process = start(folder, "serve model --port 0 --json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["models"] == ["model"]  # it listens
    process.send_signal(signal.SIGINT)
    (imported,) = reported_modules(process)
    assert imported & HEAVY == {"fastapi"}
