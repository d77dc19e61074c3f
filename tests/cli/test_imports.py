"""A verb imports what it uses: torch's compiler, sharding and plotting cost a second each."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

import vitkit

HEAVY = ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "torch.export", "torch.onnx", "sympy")
HEAVY += ("matplotlib", "pyarrow", "scipy", "onnxruntime", "fastapi", "triton")

# `import torch` alone may bring some of them, in some versions
SCRIPT = """
import json, sys
import torch
before = set(sys.modules)
from vitkit.cli.main import main
main(sys.argv[1:])
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize("words", [["predict"], ["embed", "--out", "vectors.npy"]])
def test_a_verb_imports_nothing_that_it_does_not_use(words: list[str], tmp_path: Path):
    for name, colour in (("red", (200, 30, 30)), ("blue", (30, 30, 200))):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("RGB", (40, 30), colour).save(tmp_path / "images" / name / "1.png")
    model = vitkit.create("mu/4", classes=2, image=28)
    model.metadata = replace(model.metadata, labels=("blue", "red"))
    vitkit.save(model, tmp_path / "model")
    command = [words[0], str(tmp_path / "model"), str(tmp_path / "images"), "--device", "cpu", *words[1:]]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command], capture_output=True, text=True, timeout=300, check=True, cwd=tmp_path
    )
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    assert imported.isdisjoint(HEAVY), sorted(imported & set(HEAVY))
