"""int8 inference stays within rounding of float32 on any CPU and declines what it does not know."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
import torch
from torch import Tensor, nn

from tests.model.kinds import KINDS, OTHER_ATTENTION, images_for, make
from vitkit.compute import int8
from vitkit.model.config import ViTConfig
from vitkit.torch_private import has_int8_linear

VITS = [kind for kind in KINDS if kind not in ("ResNet", "no head", "hybrid", *OTHER_ATTENTION)]
PROBE = int8.weight_levels.__wrapped__  # without the cache
LAYERS = [int8.PerTokenInt8Linear, int8.AfterGeluInt8Linear]


def plain_int8_linear(rows: Tensor, zero_point: int, packed: Tensor, scales: Tensor, zero_points: Tensor) -> Tensor:
    """The oracle: the product in 64-bit integers."""
    return ((rows.long() - zero_point) @ packed.long().T).float() * scales


def use_plain_int8_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute int8 products as a CPU with VNNI does, on any CPU and with any build of torch."""
    monkeypatch.setattr(int8, "has_int8_linear", lambda: True)
    monkeypatch.setattr(int8, "pack_int8", lambda weight: weight)
    monkeypatch.setattr(int8, "int8_linear", plain_int8_linear)
    monkeypatch.setattr(int8, "weight_levels", lambda: 127)


@pytest.fixture(params=["plain", "oneDNN", "oneDNN as without VNNI"])
def product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        use_plain_int8_product(monkeypatch)
    elif not has_int8_linear():
        pytest.skip("this build of torch has no oneDNN")
    elif request.param == "oneDNN as without VNNI":
        monkeypatch.setattr(int8, "weight_levels", lambda: 64)


@pytest.mark.parametrize(
    ("layer", "gain"), [(LAYERS[0], 1e-3), *((layer, gain) for layer in LAYERS for gain in (1, 300))]
)
def test_a_layer_is_within_the_rounding_of_weights_and_activations(product, layer, gain):
    dense = nn.Linear(64, 48)
    x = torch.randn(2, 5, 64) * gain
    x = nn.functional.gelu(x) if layer is int8.AfterGeluInt8Linear else x
    with torch.inference_mode():
        exact, quantized = dense(x), layer(dense)(x.clone())
    # at most half a step of each of 64 activations and weights
    largest, levels = dense.weight.abs().max(), int8.weight_levels()
    steps = 64 * (0.5 * (x.abs().max() + 0.2) / 126 * largest + 0.5 * largest / levels * x.abs().max())
    assert (quantized - exact).abs().max() < steps
    assert (quantized - exact).norm() < 3.8 / levels * (exact - dense.bias).norm() + 1e-3


@pytest.mark.parametrize(
    "x",
    [torch.zeros(3, 64), torch.full((3, 64), 2.0), torch.full((3, 64), -2.0)],
    ids=["zeros", "all positive", "all negative"],
)
def test_activations_of_one_sign_and_zeros_do_not_wrap_around(product, x):
    dense = nn.Linear(64, 16)
    with torch.inference_mode():
        # a step is 2 / 127 of an activation and 1 / levels of the largest weight, 1 / 8
        step = 2 / 127 / 8 + 2 / 8 / int8.weight_levels()
        torch.testing.assert_close(int8.PerTokenInt8Linear(dense)(x), dense(x), atol=64**0.5 * step, rtol=0.02)


@pytest.mark.parametrize("kind", VITS)
def test_every_vit_computes_nearly_the_same_logits_and_shares_its_other_weights(product, kind):
    model = make(kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images = images_for(model, 11)
    assert int8.reason_to_decline(model) is None
    with torch.inference_mode():
        exact = model(images)
        quantized = int8.quantize_blocks(model)
        logits = quantized(images)
        assert logits.shape == exact.shape
        scale = 127 / int8.weight_levels()
        assert (logits - exact).norm() < scale * (0.12 * (exact - exact.mean(0)).norm() + 0.02 * exact.norm())
        own = {id(parameter) for parameter in model.parameters()}
        assert all(id(parameter) in own for parameter in quantized.parameters()), "weights were copied"
        torch.testing.assert_close(model(images), exact, atol=0, rtol=0)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", VITS)
def test_attention_in_bf16_is_within_its_rounding_of_attention_in_float32(kind):
    if not has_int8_linear():
        pytest.skip("this build of torch has no oneDNN")
    model = make(kind)
    images = images_for(model, 11)
    with torch.inference_mode():
        exact = model(images)
        quantized, both = (int8.quantize_blocks(model, bf16_attention=bf16) for bf16 in (False, True))
        assert any(isinstance(module, int8.Bf16Attention) for module in both.modules())
        error, expected = (both(images) - exact).norm(), (quantized(images) - exact).norm()
    # bf16 has 8 bits, as the activations of the int8 products have: its errors are at most of their size
    assert error < 2 * expected + 2**-7 * exact.norm()


def test_no_prediction_depends_on_the_rest_of_the_batch(product):
    model = make("token")
    images = images_for(model, 6)
    images[0] *= 50
    quantized = int8.quantize_blocks(model)
    with torch.inference_mode():
        alone = torch.cat([quantized(image) for image in images.split(1)])
        # an activation on the edge between two steps may round otherwise when sums are added in another order
        torch.testing.assert_close(quantized(images), alone, atol=2e-3 * alone.abs().max().item(), rtol=0)


@pytest.mark.parametrize(("pair_sum", "levels"), [(2 * 255 * 127, 127), (2**15 - 1, 64)])
def test_weights_have_7_bits_where_oneDNN_saturates_sums_of_16_bits(pair_sum, levels, monkeypatch):
    use_plain_int8_product(monkeypatch)
    monkeypatch.setattr(int8, "int8_linear", lambda *args: plain_int8_linear(*args).clamp(max=pair_sum))
    assert PROBE() == levels


@dataclass(frozen=True, kw_only=True)
class LaterConfig(ViTConfig):
    experts: int = 0


def test_an_unknown_option_module_or_hook_is_declined_by_name():
    if not has_int8_linear():
        pytest.skip("this build of torch has no oneDNN")
    later, gated, hooked = make("token"), make("token"), make("token")
    later.config = LaterConfig(**{one.name: getattr(later.config, one.name) for one in fields(ViTConfig)})
    gated.encoder.blocks[1].mlp.add_module("gate", nn.Linear(2, 2))
    hooked.encoder.blocks[0].attention.qkv.register_forward_hook(lambda *args: None)
    assert int8.reason_to_decline(make("token")) is None
    assert int8.reason_to_decline(later) == "int8 inference does not know the option experts of LaterConfig"
    assert int8.reason_to_decline(gated) == "int8 inference does not know mlp.gate of Mlp"
    assert int8.reason_to_decline(hooked) == "int8 inference does not call the hooks on attention.qkv of a block"
    assert int8.reason_to_decline(make("ResNet")) == "int8 inference does not know models of the kind ResNetConfig"


def test_a_torch_without_onednn_is_declined(monkeypatch):
    monkeypatch.setattr(int8, "has_int8_linear", lambda: False)
    assert int8.reason_to_decline(make("token")) == "int8 inference needs a torch with oneDNN"
