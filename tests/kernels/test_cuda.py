"""The kernels on a GPU, and a fused model against a plain one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import vitkit
from tests.model.kinds import randomise
from vitkit.kernels.dispatch import TRITON
from vitkit.train.mixed_precision import MixedPrecision
from vitkit.train.objectives.labels import Labels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() and TRITON), reason="needs a CUDA device and Triton"),
]

if TRITON:
    from tests.kernels.cases.attention import *  # noqa: F403
    from tests.kernels.cases.blocks import *  # noqa: F403
    from tests.kernels.cases.blocks import BLOCKS
    from tests.kernels.cases.crop_resize import *  # noqa: F403
    from tests.kernels.cases.fp8 import *  # noqa: F403
    from tests.kernels.cases.fused_adamw import *  # noqa: F403
    from tests.kernels.cases.layers import *  # noqa: F403


@pytest.mark.parametrize("options", [{"gelu": "tanh"}, {"gelu": "exact"}, *BLOCKS.values()] if TRITON else [], ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_the_gradients_of_a_fused_model_are_as_close_to_fp32_as_those_of_a_plain_one(
    compiled: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    model = randomise(vitkit.create("Ti/16", image=64, classes=10, **options))
    objective = Labels(model, multilabel=False, smoothing=0.0, weights=None).cuda()
    pixels, targets = torch.rand(8, 3, 64, 64, device="cuda"), torch.eye(10, device="cuda")[:8]
    exact = _gradient(objective, objective, pixels, targets)
    mixed = MixedPrecision(objective)
    if compiled:
        mixed.compile(fullgraph=True)
    fused = _gradient(mixed, objective, pixels, targets)
    monkeypatch.setattr("vitkit.kernels.dispatch.TRITON", False)
    plain = _gradient(MixedPrecision(objective), objective, pixels, targets)
    assert (fused - exact).norm() < 1.3 * (plain - exact).norm()


def _gradient(
    computed: torch.nn.Module, objective: Labels, pixels: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    loss, _ = computed(pixels, targets)
    loss.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in objective.parameters()])  # type: ignore[union-attr]
    objective.zero_grad()
    return gradient
