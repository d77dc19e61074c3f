"""Attention and its rotary positions against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.kernels.cases.numbers import (
    DEVICE,
    DTYPE,
    TOLERANCE,
    in_float32,
    random,
)
from vitkit.kernels.attention import fused_attention
from vitkit.kernels.attention_triton import attention_backward
from vitkit.kernels.dispatch import INTERPRETED
from vitkit.kernels.fuse import FusedAttention, fused_module
from vitkit.kernels.rotary_triton import rotate
from vitkit.model.attention import SelfAttention, split_heads
from vitkit.model.rotary import RotaryPositions
from vitkit.model.variants import configure


@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "width"),
    [
        (2, 197, 2, 64),
        (1, 65, 3, 32),
        (3, 17, 1, 64),
        (1, 128, 1, 32),
        (1, 1, 2, 32),
        (2, 50, 2, 64),
        (1, 33, 1, 64),
        (1, 127, 1, 32),
    ],
)
def test_the_backward_of_attention_equals_torchs(batch: int, tokens: int, heads: int, width: int):
    qkv, grad = random(batch, tokens, 3 * heads * width, grad=True), random(batch, tokens, heads * width)
    (exact,) = in_float32(qkv)
    query, key, value = split_heads(exact, heads)
    mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    lse = (query @ key.transpose(-2, -1) * width**-0.5).logsumexp(dim=-1)
    mixed.backward(grad.float())
    with torch.no_grad():
        found, sums = attention_backward(grad, qkv, mixed.to(DTYPE), lse)
    assert_close(found.float(), exact.grad, **TOLERANCE)
    assert_close(sums.sum(0), exact.grad.sum((0, 1)), atol=10 * TOLERANCE["atol"], rtol=TOLERANCE["rtol"])


@pytest.mark.parametrize("tokens", [5, 70])
def test_fused_attention_has_the_gradients_of_torch(tokens: int):
    inputs = [random(2, tokens, 64, grad=True), (random(192, 64) / 8).requires_grad_(), random(192, grad=True)]
    grad = random(2, tokens, 64)
    x, weight, bias = exact = in_float32(*inputs)
    mixed = F.scaled_dot_product_attention(*split_heads(F.linear(x, weight, bias), 2)).transpose(1, 2).flatten(2)
    mixed.backward(grad.float())
    output = fused_attention(*inputs, 2)
    output.backward(grad)
    assert_close(output.float(), mixed, **TOLERANCE)
    for ours, theirs in zip(inputs, exact, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert (ours.grad.float() - theirs.grad).norm() < (1e-4 if INTERPRETED else 2e-2) * theirs.grad.norm()


def rotary_positions(heads: int, depth: int, layout: str) -> RotaryPositions:
    """Positions of 6 x 8 patches."""
    options = {"rotary": "centred", "rotary_layout": layout, "positions": "none", "width": heads * depth}
    config = configure("mu/4", image=(24, 32), heads=heads, mlp=8, classes=2, **options)
    return RotaryPositions(config).to(DEVICE)


@pytest.mark.parametrize(("heads", "depth"), [(2, 32), (3, 12)])
@pytest.mark.parametrize("special", [0, 5])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_queries_and_keys_are_turned_in_place_and_back(layout: str, special: int, heads: int, depth: int):
    rotary, width = rotary_positions(heads, depth, layout), heads * depth
    qkv = random(3, special + 48, 3 * width)
    query, key, value = split_heads(qkv.clone().float(), heads)
    tables, turned = (rotary.cos, rotary.sin, heads, layout == "interleaved"), qkv.clone()
    rotate(turned, *tables, False)
    for ours, theirs in zip(split_heads(turned.float(), heads), (*rotary(query, key), value), strict=True):
        assert_close(ours, theirs, **TOLERANCE)
    sums = rotate(turned, *tables, True)
    assert_close(turned, qkv, **TOLERANCE)
    expected = qkv.float().sum((0, 1))[: 2 * width]
    assert_close(sums.sum(0), expected, atol=50 * TOLERANCE["atol"], rtol=TOLERANCE["rtol"])


def test_second_derivatives_raise_an_error():
    x, weight, bias = random(1, 4, 64, grad=True), random(192, 64, grad=True), random(192, grad=True)
    (first,) = torch.autograd.grad(fused_attention(x, weight, bias, 2).sum(), x, retain_graph=True)
    assert first.isfinite().all()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(fused_attention(x, weight, bias, 2).sum(), x, create_graph=True)


def test_attention_for_the_first_token_equals_attention_for_all():
    attention = fused_module(FusedAttention, SelfAttention(width=64, heads=2).to(DEVICE, DTYPE))
    x = random(3, 21, 64, grad=True)
    found = []
    for first in (attention(x, queries=1), attention(x)[:, :1]):
        first.float().square().sum().backward()
        found.append([first.float(), x.grad, *(parameter.grad for parameter in attention.parameters())])
        x.grad = None
        attention.zero_grad()
    for one, other in zip(*found, strict=True):
        assert_close(one, other, **TOLERANCE)
