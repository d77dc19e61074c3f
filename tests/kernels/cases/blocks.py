"""Fused blocks: their gradients, the hooks on their layers, and layers that replace others."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import vitkit
from tests.kernels.cases.numbers import (
    DEVICE,
    DTYPE,
    TOLERANCE,
    random,
)
from tests.model.kinds import randomise
from vitkit.compute.fused_vit import FusedViT
from vitkit.kernels.dispatch import INTERPRETED
from vitkit.kernels.fuse import FusedBlock, fuse, fused_block
from vitkit.model.encoder import Block
from vitkit.model.variants import configure

BLOCKS = {
    "DINOv3": {"key_bias": False, "rotary": "centred", "positions": "none", "registers": 4, "layer_scale": 0.5},
    "DINOv3, SwiGLU": {"rotary": "centred", "positions": "none", "layer_scale": 0.5, "swiglu": True},
    "interleaved": {"rotary": "index", "rotary_layout": "interleaved", "positions": "none"},
    "CLIP": {"gelu": "quick", "ln_pre": True},
    "no bias": {"query_bias": False, "key_bias": False, "value_bias": False, "layer_scale": 0.5},
}


@pytest.mark.parametrize("class_token_only", [False, True])
@pytest.mark.parametrize("family", BLOCKS)
def test_a_fused_model_of_a_later_family_has_the_gradients_of_the_plain_one(family: str, class_token_only: bool):
    """Each has heads of 32 numbers, which the fused attention takes; the plain model is in float32.

    In bf16 a gradient may be as far from it as twice what the plain model's own is, if that is more than 5 %.
    """
    torch.manual_seed(0)
    model = vitkit.create("mu/4", image=(12, 16), width=64, heads=2, mlp=96, classes=3, **BLOCKS[family]).to(DEVICE)
    randomise(model)
    fused = deepcopy(model).to(DTYPE)
    assert fuse(fused, class_token_only=class_token_only) is None
    images = torch.randn(2, 3, 12, 16, device=DEVICE)
    rounded = deepcopy(model).to(DTYPE)
    expected, found, plain = model(images), fused(images.to(DTYPE)), rounded(images.to(DTYPE))
    bound = 1e-4 if INTERPRETED else 5e-2
    assert (found.float() - expected).norm() < bound * expected.norm()
    gradients, theirs, rounding = (
        torch.autograd.grad(output.float().square().sum(), list(module.parameters()))
        for output, module in ((found, fused), (expected, model), (plain, rounded))
    )
    for name, ours, other, its in zip(dict(model.named_parameters()), gradients, theirs, rounding, strict=True):
        allowed = max(bound * other.norm(), 2 * (its.float() - other).norm())
        assert (ours.float() - other).norm() <= allowed + 1e-6, name
    with torch.no_grad():
        inferred = FusedViT(model.eval(), DTYPE)(images)
    assert (inferred - expected).norm() < bound * expected.norm()


def test_hooks_on_a_layer_scale_of_a_fused_block_are_called():
    model = vitkit.create("mu/4", image=16, classes=3, layer_scale=0.5).to(DEVICE, DTYPE)
    fuse(model)
    called = []
    for name in ("attention_scale", "mlp_scale"):
        model.encoder.blocks[0].get_submodule(name).register_forward_hook(lambda *_, name=name: called.append(name))
    model(random(1, 3, 16, 16))
    assert called == ["attention_scale", "mlp_scale"]


class Adapted(torch.nn.Linear):
    """A layer as adapter libraries write it: a subclass that adds something."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


LAYERS = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")


def small_block(*, class_token_only: bool, dropout: float = 0.0) -> FusedBlock:
    config = configure("mu/16", image=64, width=64, heads=2, mlp=128, dropout=dropout)
    block = fused_block(Block(config, drop=0.0).to(DEVICE, DTYPE))
    block.class_token_only = class_token_only
    return block


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("class_token_only", [False, True])
def test_hooks_on_the_layers_of_a_fused_block_are_called(dropout: float, class_token_only: bool):
    block, called = small_block(class_token_only=class_token_only, dropout=dropout), []
    for name in LAYERS:
        block.get_submodule(name).register_forward_hook(lambda *_, name=name: called.append(name))
    block(random(2, 17, 64, grad=True), None, {}, "block0")
    assert called == [*LAYERS]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("class_token_only", [False, True])
def test_a_layer_that_replaces_one_of_a_fused_block_is_called(name: str, class_token_only: bool):
    block = small_block(class_token_only=class_token_only).eval()
    x, layer = random(2, 17, 64, grad=True), block.get_submodule(name)
    adapted = Adapted(layer.in_features, layer.out_features, device=DEVICE, dtype=DTYPE)
    adapted.load_state_dict(layer.state_dict())
    block.set_submodule(name, adapted)
    output = block(x, None, {}, "block0")
    block.set_submodule(name, layer)
    with torch.no_grad():
        layer.bias += 1
    assert_close(output, block(x, None, {}, "block0"), **TOLERANCE)
