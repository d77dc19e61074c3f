"""The kernels on a GPU, and the model that they are part of beside itself without them."""

from __future__ import annotations

import pytest
import torch

import vitkit
from tests.model.kinds import randomise
from vitkit.kernels.dispatch import TRITON
from vitkit.train.mixed_precision import Narrow
from vitkit.train.objectives.labels import Labels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() and TRITON), reason="needs a CUDA device and Triton"),
]

if TRITON:
    from tests.kernels.cases import *  # noqa: F403


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
@pytest.mark.parametrize("compiled", [False, True])
def test_fused_the_model_learns_as_it_does_in_float32(compiled: bool, gelu: str, monkeypatch: pytest.MonkeyPatch):
    model = randomise(vitkit.create("Ti/16", image=64, classes=10, gelu=gelu))
    objective = Labels(model, multilabel=False, smoothing=0.0, weights=None).cuda()
    pixels, targets = torch.rand(8, 3, 64, 64, device="cuda"), torch.eye(10, device="cuda")[:8]
    exact = _gradient(objective, objective, pixels, targets)
    narrow = Narrow(objective)
    if compiled:
        narrow.compile(fullgraph=True)
    fused = _gradient(narrow, objective, pixels, targets)
    for place in ("attention", "encoder"):
        monkeypatch.setattr(
            f"vitkit.model.{place}.{'attends' if place == 'attention' else 'fusable'}", lambda *given: False
        )
    plain = _gradient(Narrow(objective), objective, pixels, targets)
    assert (fused - exact).norm() < 1.3 * (plain - exact).norm()


def _gradient(
    computed: torch.nn.Module, objective: Labels, pixels: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    loss, _ = computed(pixels, targets)
    loss.backward()
    found = torch.cat([parameter.grad.flatten() for parameter in objective.parameters()])  # type: ignore[union-attr]
    objective.zero_grad()
    return found
