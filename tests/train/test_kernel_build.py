"""The kernels that are compiled beforehand are those that a step launches."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

COLLECT = """
import torch, vitkit
from vitkit.train.kernel_build import launches_of_step
from vitkit.train.mixed_precision import MixedPrecision
from vitkit.train.dry_run import dry_run
from vitkit.train.objectives.labels import Labels
from vitkit.kernels import dispatch

model = vitkit.create("mu/4", image=(12, 16), width=64, heads=2, mlp=96, classes=3, depth=3)
objective = Labels(model, multilabel=False, smoothing=0.0, weights=None)
before = {name: tensor.clone() for name, tensor in objective.state_dict().items()}
cpu = torch.device("cpu")
found = {launch.kernel.__name__ for launch in launches_of_step(objective, 2, cpu)}
assert all(torch.equal(tensor, before[name]) for name, tensor in objective.state_dict().items())
assert all(parameter.grad is None for parameter in objective.parameters())

launched = set()
original = dispatch._Launcher.__getitem__
def counting(self, grid):
    launched.add(self.kernel.__name__)
    return original(self, grid)
dispatch._Launcher.__getitem__ = counting
dry_run(MixedPrecision(objective), objective, 2, cpu)
assert found == launched and len(found) > 5, (found, launched)
"""

BUILD = """
import os, torch, vitkit
from pathlib import Path
from vitkit.train.kernel_build import KernelBuild
from vitkit.train.mixed_precision import MixedPrecision
from vitkit.train.dry_run import dry_run
from vitkit.train.objectives.labels import Labels

device = torch.device("cuda", torch.cuda.current_device())
objective = Labels(vitkit.create("Ti/16", classes=5), multilabel=False, smoothing=0.0, weights=None).to(device)
build = KernelBuild(objective, 64, device, "bf16")
build.wait()
for future in build.compiled:
    future.result()
compiled = sorted(path.name for path in Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))
dry_run(MixedPrecision(objective), objective, 64, device)
torch.cuda.synchronize()
assert compiled and compiled == sorted(path.name for path in Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))
assert all(torch.isfinite(parameter.grad).all() for parameter in objective.parameters() if parameter.grad is not None)
"""


def run(code: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_pass_without_launches_finds_the_kernels_of_a_step_and_changes_nothing():
    pytest.importorskip("triton")
    run(COLLECT, TRITON_INTERPRET="1")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_compiles_nothing_that_was_not_compiled_beforehand(tmp_path):
    run(BUILD, TRITON_CACHE_DIR=str(tmp_path))
