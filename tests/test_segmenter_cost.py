"""The closed form of segmenters against counted multiply-adds, parameters and the tensors that autograd keeps."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.model.kinds import SEGMENTERS, images_for, make
from tests.test_cost import kept_bytes
from vitkit.cost import cost
from vitkit.kernels.fuse import fuse
from vitkit.model.build import build
from vitkit.model.variants import configure


@pytest.mark.parametrize("kind", SEGMENTERS)
def test_multiply_adds_equal_those_of_a_real_forward_pass(kind: str):
    model = make(kind)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images_for(model, batch=1))
    assert 2 * cost(model.config).macs == counter.get_total_flops()


@pytest.mark.parametrize("kind", SEGMENTERS)
def test_parameters_equal_the_models(kind: str):
    model = make(kind)
    assert cost(model.config).parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["Ti/16+linear", "B/16+queries", "L/14+queries", "giant2/14+linear", "B/32+queries"])
def test_parameters_equal_those_of_named_models(name: str):
    config = configure(name, classes=11)
    with torch.device("meta"):
        model = build(config)
    assert cost(config).parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("kind", SEGMENTERS)
@pytest.mark.parametrize("batch", [2, 4])
def test_activation_memory_is_what_autograd_keeps_in_training(kind: str, batch: int):
    model = make(kind).train()
    fuse(model)  # as an objective does before training
    probability = torch.ones(model.config.query_blocks)

    def train(images: torch.Tensor) -> object:
        return model(images) if model.config.head == "linear" else model.predictions(images, probability)

    train.parameters, train.buffers = model.parameters, model.buffers  # type: ignore[attr-defined]
    closed_form = cost(model.config).activation_bytes(batch, bytes_per_number=4)
    assert closed_form == pytest.approx(kept_bytes(train, images_for(model, batch)), rel=0.06)  # type: ignore[arg-type]
