"""Models for inference against the plain model: equal in float32, close in bf16 and fp8."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from tests.model.kinds import KINDS, images_for, make
from vitkit.compute import int8
from vitkit.compute.fused_vit import FusedViT, reason_to_decline
from vitkit.compute.inference import check_precision, for_inference, supported_precisions
from vitkit.errors import ConfigError
from vitkit.model.vit import VisionTransformer

PLAIN = [
    kind
    for kind in KINDS
    if not any(word in kind for word in ("every", "shared", "relative", "inducing", "post-norm", "axial", "ResNet"))
]


def test_the_fused_forward_pass_takes_pre_norm_encoders_and_declines_others():
    assert [kind for kind in KINDS if reason_to_decline(make(kind)) is None] == PLAIN


@pytest.mark.parametrize("kind", PLAIN)
def test_the_fused_forward_pass_is_the_same_function(kind: str):
    model = make(kind)
    assert isinstance(model, VisionTransformer)
    images = images_for(model, 3)
    fused = FusedViT(model, torch.float32)
    with torch.inference_mode():
        logits, seen = model(images, ("representation",))
        assert_close(fused(images), logits, atol=2e-5, rtol=2e-4)
        assert_close(fused.represent(images), seen["representation"], atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_logits_are_about_as_close_as_autocasts_and_the_model_is_unchanged(kind: str):
    model = make(kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = images_for(model, 2)
    with torch.inference_mode():
        exact, compute = model(images), for_inference(model, "bf16")
        logits, seen = compute(images), compute.represent(images)
        with torch.autocast("cpu", torch.bfloat16):
            theirs = model(images)
    assert logits.dtype == seen.dtype == torch.float32
    assert (logits - exact).norm() < 2 * (theirs.float() - exact).norm() + 0.02 * exact.norm()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", PLAIN)
def test_fp8_logits_are_as_close_as_three_bits_of_mantissa_allow(kind: str):
    model = make(kind)
    images = images_for(model, 8)
    with torch.inference_mode():
        exact, logits = model(images), for_inference(model, "fp8")(images)
    # each number is within 1/16, and errors are as often positive as negative
    assert (logits - exact).norm() < 0.2 * exact.norm()


class Adapted(nn.Linear):
    """A layer as adapter libraries write it: a subclass that adds something."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


@pytest.mark.parametrize("name", ["attention.qkv", "attention.out", "mlp.up", "mlp.down"])
def test_replaced_layers_are_called_in_bf16_and_not_quantised(name: str):
    model = make("token")
    block = model.encoder.blocks[0]
    layer = block.get_submodule(name)
    adapted = Adapted(layer.in_features, layer.out_features)
    adapted.load_state_dict(layer.state_dict())
    block.set_submodule(name, adapted)
    images = images_for(model, 2)
    with torch.inference_mode():
        exact = model(images)
        assert (for_inference(model, "bf16")(images) - exact).norm() < 0.03 * exact.norm()
    with pytest.raises(ConfigError, match="fp8 is for plain ViTs"):
        check_precision(model, torch.device("cuda", 0), "fp8")
    assert int8.reason_to_decline(model)


def test_float32_shares_the_weights_and_leaves_the_model_as_it_is():
    model = make("token")
    types = [type(module) for module in model.modules()]
    computed = for_inference(model, "fp32")
    assert {id(parameter) for parameter in computed.parameters()} == {id(parameter) for parameter in model.parameters()}
    assert [type(module) for module in model.modules()] == types


def test_fp8_is_refused_where_it_is_not_supported():
    with pytest.raises(ConfigError, match="cpu does not multiply fp8"):
        check_precision(make("token"), torch.device("cpu"), "fp8")
    with pytest.raises(ConfigError, match="plain ViTs"):
        check_precision(make("ResNet"), torch.device("cpu"), "fp8")
    check_precision(make("ResNet"), torch.device("cpu"), "bf16")


def test_a_cpu_multiplies_float32():
    assert supported_precisions(torch.device("cpu")) == ("fp32",)
