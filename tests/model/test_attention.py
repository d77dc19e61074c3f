"""Scaled dot-product attention against the pure function, forward and backward, for every kind of positions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.model.kinds import POSITIONS, images_for, make
from vitkit.model.attention import SelfAttention, attention_weights, split_heads
from vitkit.model.positions import Relative


def unfused(self: SelfAttention, x: torch.Tensor, relative: Relative | None = None) -> torch.Tensor:
    query, key, value = split_heads(self.qkv(x), self.heads)
    weights = attention_weights(query, key, relative(query) if relative is not None else None)
    return self.out((weights @ value).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("kind", POSITIONS)
def test_fused_attention_equals_the_pure_function_forward_and_backward(kind: str, monkeypatch: pytest.MonkeyPatch):
    model = make(kind).double()
    images = images_for(model).double()
    fused = model(images)
    gradients = torch.autograd.grad(fused.square().sum(), list(model.parameters()))
    monkeypatch.setattr(SelfAttention, "forward", unfused)
    plain = model(images)
    torch.testing.assert_close(fused, plain)
    expected = torch.autograd.grad(plain.square().sum(), list(model.parameters()))
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@given(heads=st.integers(1, 4), tokens=st.integers(1, 9), depth=st.integers(1, 8))
def test_weights_equal_torchs_own_attention_module(heads: int, tokens: int, depth: int):
    width = heads * depth
    ours = SelfAttention(width=width, heads=heads).double()
    theirs = torch.nn.MultiheadAttention(width, heads, batch_first=True).double()
    theirs.load_state_dict(
        {
            "in_proj_weight": ours.qkv.weight,
            "in_proj_bias": ours.qkv.bias,
            "out_proj.weight": ours.out.weight,
            "out_proj.bias": ours.out.bias,
        }
    )
    x = torch.randn(2, tokens, width).double()
    output, weights = theirs(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(ours.weights(x), weights)
    torch.testing.assert_close(ours(x), output)


def test_half_precision_weights_are_normalised_in_single():
    query, key = torch.randn(2, 1, 2, 64, 16).bfloat16() * 4
    weights = attention_weights(query, key)
    assert weights.dtype == torch.bfloat16
    exact = attention_weights(query.double(), key.double())
    torch.testing.assert_close(weights.double(), exact, atol=5e-2, rtol=5e-2)
