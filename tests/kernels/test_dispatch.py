"""Where fused kernels are used, and that everything works where they cannot be."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import vitkit
from tests.model.kinds import make
from vitkit.compute.inference import numbers_here
from vitkit.kernels.dispatch import TRITON, fusable
from vitkit.predict import engines


def test_nothing_is_fused_on_a_cpu():
    assert not TRITON
    assert not fusable(torch.zeros(2, dtype=torch.bfloat16))


def test_a_torch_for_cuda_without_triton_computes_by_torchs_own_kernels():
    code = """
import sys
sys.modules["triton"] = None
import torch
torch.version.cuda = "13.0"
import vitkit
from vitkit.compute.inference import ready
from vitkit.kernels.dispatch import TRITON
assert not TRITON
model = vitkit.create("mu/8", image=32, classes=5)
model(torch.rand(2, 3, 32, 32)).sum().backward()
for numbers in ("bf16", "fp8"):
    assert ready(model, numbers)(torch.rand(2, 3, 32, 32)).shape == (2, 5)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("ability", "numbers", "offered"),
    [
        ((7, 5), ("fp32",), []),
        ((8, 0), ("fp32", "bf16"), ["bf16"]),
        ((8, 9), ("fp32", "bf16"), ["bf16"]),
        ((9, 0), ("fp32", "bf16", "fp8"), ["bf16", "fp8 matrices"]),
    ],
)
def test_a_gpu_is_asked_for_no_numbers_that_it_does_not_have(ability, numbers, offered, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: ability)
    assert numbers_here(torch.device("cuda")) == numbers
    classifier = vitkit.Classifier(make("token"))
    monkeypatch.setattr(classifier, "device", torch.device("cuda"))
    assert [way.words for way in engines.ways(classifier)] == offered


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_without_triton_the_numbers_are_the_same(monkeypatch):
    from vitkit.compute.inference import ready
    from vitkit.train.mixed_precision import Narrow
    from vitkit.train.objectives.labels import Labels

    model = make("token").cuda()
    images = torch.rand(4, 3, 32, 32, device="cuda")
    objective = Labels(model, multilabel=False, smoothing=0.0, weights=None).cuda()
    found = []
    for there in (TRITON, False):
        monkeypatch.setattr("vitkit.kernels.dispatch.TRITON", there)
        loss, _ = Narrow(objective)(images, torch.eye(10, device="cuda")[:4])
        loss.backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        model.zero_grad()
        with torch.inference_mode():
            found.append((loss.detach(), gradient, ready(model, "bf16")(images)))
    for fused, plain in zip(*found, strict=True):
        assert (fused - plain).norm() < 0.05 * plain.norm()
