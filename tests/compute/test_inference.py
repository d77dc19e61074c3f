"""Models made ready to answer, beside the plain model: the same in float32, close in narrower numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.model.kinds import KINDS, images_for, make
from vitkit.compute import int8
from vitkit.compute.fused_vit import Quick, applies
from vitkit.compute.inference import check_numbers, numbers_here, ready
from vitkit.errors import ConfigError
from vitkit.model.vit import VisionTransformer

PLAIN = [
    kind
    for kind in KINDS
    if not any(word in kind for word in ("every", "shared", "relative", "post-norm", "axial", "ResNet"))
]


def test_the_papers_encoder_is_laid_out_anew_and_others_are_not():
    assert [kind for kind in KINDS if applies(make(kind))] == PLAIN


@pytest.mark.parametrize("kind", PLAIN)
def test_laid_out_anew_it_is_the_same_function(kind: str):
    model = make(kind)
    assert isinstance(model, VisionTransformer)
    images = images_for(model, 3)
    quick = Quick(model, torch.float32)
    with torch.inference_mode():
        told, seen = model(images, ("representation",))
        assert_close(quick(images), told, atol=2e-5, rtol=2e-4)
        assert_close(quick.represent(images), seen["representation"], atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_in_bf16_answers_are_about_as_close_as_autocasts_and_the_model_stays_as_it_is(kind: str):
    model = make(kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = images_for(model, 2)
    with torch.inference_mode():
        exact, compute = model(images), ready(model, "bf16")
        told, seen = compute(images), compute.represent(images)
        with torch.autocast("cpu", torch.bfloat16):
            theirs = model(images)
    assert told.dtype == seen.dtype == torch.float32
    assert (told - exact).norm() < 2 * (theirs.float() - exact).norm() + 0.02 * exact.norm()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", PLAIN)
def test_in_8_bits_answers_are_as_close_as_three_bits_of_a_number_allow(kind: str):
    model = make(kind)
    images = images_for(model, 8)
    with torch.inference_mode():
        exact, told = model(images), ready(model, "fp8")(images)
    # each number is within 1/16, and errors are as often above as below
    assert (told - exact).norm() < 0.2 * exact.norm()


class Adapted(nn.Linear):
    """As those who train a few numbers beside a layer write it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


@pytest.mark.parametrize("name", ["attention.qkv", "attention.out", "mlp.up", "mlp.down"])
def test_layers_of_somebody_elses_answer_in_bf16_and_are_not_rounded_to_8_bits(name: str):
    model = make("token")
    block = model.encoder.blocks[0]
    layer = block.get_submodule(name)
    adapted = Adapted(layer.in_features, layer.out_features)
    adapted.load_state_dict(layer.state_dict())
    block.set_submodule(name, adapted)
    images = images_for(model, 2)
    with torch.inference_mode():
        exact = model(images)
        assert (ready(model, "bf16")(images) - exact).norm() < 0.03 * exact.norm()
    with pytest.raises(ConfigError, match="fp8 is for plain ViTs"):
        check_numbers(model, torch.device("cuda", 0), "fp8")
    assert not int8.applies(model)


def test_in_float32_the_model_itself_answers():
    model = make("token")
    assert ready(model, "fp32").model is model


def test_8_bits_are_refused_where_they_would_be_pretended():
    with pytest.raises(ConfigError, match="cpu does not multiply fp8"):
        check_numbers(make("token"), torch.device("cpu"), "fp8")
    with pytest.raises(ConfigError, match="plain ViTs"):
        check_numbers(make("ResNet"), torch.device("cpu"), "fp8")
    check_numbers(make("ResNet"), torch.device("cpu"), "bf16")


def test_a_cpu_multiplies_float32():
    assert numbers_here(torch.device("cpu")) == ("fp32",)
