"""A fused model against the plain one: the same function, names and gradients; what it does not know stays plain."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.testing import assert_close

import vitkit
from tests.model.kinds import KINDS, images_for, make
from vitkit.kernels.fuse import FusedBlock, FusedMlp, fuse
from vitkit.model.encoder import Block
from vitkit.model.mlp import Mlp

EPS = torch.finfo(torch.float64).eps


@pytest.mark.parametrize("class_token_only", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fused_model_has_the_logits_gradients_and_names_of_the_plain_one(kind: str, class_token_only: bool):
    model = make(kind).double()
    fused = copy.deepcopy(model)
    fuse(fused, class_token_only=class_token_only)
    assert list(fused.state_dict()) == list(model.state_dict())
    assert [name for name, _ in fused.named_parameters()] == [name for name, _ in model.named_parameters()]
    images = images_for(model).double()
    logits, expected = fused(images), model(images)
    assert_close(
        logits, expected, atol=1e4 * EPS, rtol=1e4 * EPS
    )  # sums of up to a thousand products, a few layers deep
    gradients, theirs = (
        torch.autograd.grad(output.square().sum(), list(module.parameters()))
        for output, module in ((logits, fused), (expected, model))
    )
    for name, one, other in zip(dict(model.named_parameters()), gradients, theirs, strict=True):
        scale = 1e5 * EPS * max(float(other.abs().max()), 1.0)
        assert_close(one, other, atol=scale, rtol=1e5 * EPS, msg=lambda text, name=name: f"{name}: {text}")


def test_the_last_block_of_a_class_token_model_computes_one_token():
    model = make("token")
    fuse(model, class_token_only=True)
    lengths: list[int] = []
    for block in model.encoder.blocks:
        block.mlp.register_forward_hook(lambda module, inputs, output: lengths.append(inputs[0].shape[1]))
    model(images_for(model))
    assert lengths == [model.config.tokens, 1]


@pytest.mark.parametrize("name", ["encoded", "block1"])
def test_captured_tokens_are_complete(name: str):
    model = make("token")
    images = images_for(model)
    expected = model(images, capture=(name,))[1][name]
    fuse(model, class_token_only=True)
    assert_close(model(images, capture=(name,))[1][name], expected)


def test_fusing_shares_the_parameters_and_takes_copies_along():
    model = make("token")
    own = {id(parameter) for parameter in model.parameters()}
    fuse(model, class_token_only=True)
    assert {id(parameter) for parameter in model.parameters()} == own
    twin = copy.deepcopy(model)
    assert {id(parameter) for parameter in twin.parameters()}.isdisjoint(own)
    assert torch.equal(twin(images_for(model) * 0), model(images_for(model) * 0))


def test_a_block_with_hooks_stays_plain_and_is_named():
    model = vitkit.create("mu/8", image=32)
    model.encoder.blocks[0].mlp.up.register_forward_hook(lambda *_: None)
    assert fuse(model) == "the fused training path does not call the hooks on mlp.up"
    assert [type(block) for block in model.encoder.blocks] == [Block, FusedBlock]


def test_the_mlp_of_an_attention_pool_is_fused_unless_it_has_hooks():
    plain, hooked = make("attention pool"), make("attention pool")
    assert fuse(plain) is None
    assert isinstance(plain.pool.mlp, FusedMlp)
    hooked.pool.mlp.dropout.register_forward_hook(lambda *_: None)
    assert fuse(hooked) == "the fused training path does not call the hooks on dropout"
    assert type(hooked.pool.mlp) is Mlp


def test_fusing_twice_changes_nothing():
    model = make("token")
    fuse(model, class_token_only=True)
    blocks = list(model.encoder.blocks)
    assert fuse(model, class_token_only=True) is None
    assert list(model.encoder.blocks) == blocks
