"""The same models on a GPU: the CPU's numbers, and graphs that the real compiler takes."""

from __future__ import annotations

import pytest
import torch

from tests.model.kinds import KINDS, images_for, make

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN rounds convolutions to TF32 by default; comparisons with the CPU want the full mantissa."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_the_cpus(kind: str):
    model = make(kind)
    images = images_for(model)
    expected = model(images)
    torch.testing.assert_close(model.cuda()(images.cuda()).cpu(), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["token", "relative", "axial", "attention pool", "hybrid", "ResNet"])
def test_inductor_takes_one_graph_forward_and_backward(kind: str):
    model = make(kind).cuda()
    images = images_for(model).cuda()
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images), atol=1e-3, rtol=1e-3)
    compiled(images).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_bf16_stays_close_to_single_precision():
    model = make("token").cuda()
    images = images_for(model).cuda()
    expected = model(images)
    torch.testing.assert_close(model.bfloat16()(images.bfloat16()).float(), expected, atol=0.1, rtol=0.1)
