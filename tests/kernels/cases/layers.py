"""Activations, MLP, LayerNorm and linear layers against torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.kernels.cases.numbers import (
    DEVICE,
    TOLERANCE,
    in_float32,
    layer_norm,
    plain_activation,
    random,
)
from vitkit.kernels import forward
from vitkit.kernels.dispatch import INTERPRETED
from vitkit.kernels.forward import Activation
from vitkit.kernels.gelu_triton import gelu, gelu_backward
from vitkit.kernels.linear import fused_linear
from vitkit.kernels.mlp import fused_mlp
from vitkit.kernels.norm import residual_layer_norm
from vitkit.kernels.swiglu_triton import swiglu, swiglu_backward


@pytest.mark.parametrize("kind", ["tanh", "exact", "quick"])
@pytest.mark.parametrize(("rows", "columns"), [(130, 300), (1, 7), (300, 129)])
def test_gelu_and_its_backward_equal_torchs(kind: str, rows: int, columns: int):
    before, grad = 3 * random(rows, columns), random(rows, columns)
    (exact,) = in_float32(before.requires_grad_())
    after = plain_activation(exact, kind)
    after.backward(grad.float())
    with torch.no_grad():
        found, fresh, sums = gelu_backward(grad, before, kind)
        assert_close(gelu(before, kind).float(), after, **TOLERANCE)
    assert_close(fresh.float(), after, **TOLERANCE)
    assert_close(found.float(), exact.grad, **TOLERANCE)
    assert_close(sums.sum(0), exact.grad.sum(0), atol=10 * TOLERANCE["atol"], rtol=TOLERANCE["rtol"])


@pytest.mark.parametrize(("rows", "columns"), [(130, 300), (1, 7), (300, 129)])
def test_swiglu_and_its_backward_equal_torchs(rows: int, columns: int):
    gate_up, grad = 3 * random(rows, 2 * columns), random(rows, columns)
    (exact,) = in_float32(gate_up.requires_grad_())
    after = plain_activation(exact, "swiglu")
    after.backward(grad.float())
    with torch.no_grad():
        found, fresh, sums = swiglu_backward(grad, gate_up)
        assert_close(swiglu(gate_up).float(), after, **TOLERANCE)
    assert_close(fresh.float(), after, **TOLERANCE)
    assert_close(found.float(), exact.grad, **TOLERANCE)
    assert_close(sums.sum(0), exact.grad.sum(0), atol=10 * TOLERANCE["atol"], rtol=TOLERANCE["rtol"])


@pytest.mark.parametrize("shape", [(2, 5, 24), (7, 24)])
@pytest.mark.parametrize("activation", ["tanh", "exact", "quick", "swiglu"])
def test_the_fused_mlp_has_the_gradients_of_torch(activation: Activation, shape: tuple[int, ...]):
    hidden = 192 if activation == "swiglu" else 96
    inputs = [
        random(*shape, grad=True),
        random(hidden, 24, grad=True),
        random(hidden, grad=True),
        random(24, 96, grad=True),
        random(24, grad=True),
    ]
    grad = random(*shape)
    x, up, up_bias, down, down_bias = exact = in_float32(*inputs)
    out = F.linear(plain_activation(F.linear(x, up, up_bias), activation), down, down_bias)
    out.backward(grad.float())
    output = fused_mlp(*inputs, activation=activation)
    output.backward(grad)
    assert (output.float() - out).norm() < (1e-5 if INTERPRETED else 1e-2) * out.norm()
    for ours, theirs in zip(inputs, exact, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert (ours.grad.float() - theirs.grad).norm() < (1e-4 if INTERPRETED else 2e-2) * theirs.grad.norm()


@pytest.mark.parametrize("shape", [(2, 5, 48), (130, 192), (1, 1, 16)])
def test_the_residual_layer_norm_has_the_gradients_of_torch(shape: tuple[int, ...]):
    x, layer = random(*shape, grad=True), layer_norm(shape[-1]).requires_grad_()
    grad_residual, grad_normed = random(*shape), random(*shape)
    exact, weight, bias = in_float32(x, layer.weight, layer.bias)
    (
        exact * grad_residual.float() + F.layer_norm(exact, shape[-1:], weight, bias, layer.eps) * grad_normed.float()
    ).sum().backward()
    stream, normed = residual_layer_norm(layer, x)
    assert torch.equal(stream, x)
    torch.autograd.backward((stream, normed), (grad_residual, grad_normed))
    for ours, theirs in ((x, exact), (layer.weight, weight), (layer.bias, bias)):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert (ours.grad.float() - theirs.grad).norm() < (1e-4 if INTERPRETED else 2e-2) * theirs.grad.norm() + 1e-5


@pytest.mark.parametrize(("shape", "out"), [((2, 5, 32), 48), ((700, 16), 65), ((257, 8), 200), ((1, 8), 1)])
@pytest.mark.parametrize("learns", [True, False])
def test_the_fused_linear_layer_has_the_gradients_of_torch(shape: tuple[int, ...], out: int, learns: bool):
    """The input may need a gradient or, like pixels, none."""
    x, weight, bias = random(*shape, grad=learns), random(out, shape[-1], grad=True), random(out, grad=True)
    grad, learning = random(*shape[:-1], out), [tensor for tensor in (x, weight, bias) if tensor.requires_grad]
    expected, ours = F.linear(x, weight, bias), fused_linear(x, weight, bias)
    assert torch.equal(ours, expected)
    for one, other in zip(
        torch.autograd.grad(ours, learning, grad), torch.autograd.grad(expected, learning, grad), strict=True
    ):
        assert_close(one, other, **TOLERANCE)


@pytest.mark.parametrize(("rows", "width"), [(5, 48), (9, 192), (1, 16)])
def test_the_shifted_layer_norm_adds_the_shift(rows: int, width: int):
    stream, shift, layer = random(rows, width), torch.randn(width, device=DEVICE), layer_norm(width)
    expected = F.layer_norm(stream.float() + shift, (width,), layer.weight.float(), layer.bias.float(), layer.eps)
    assert_close(forward.shifted_layer_norm(stream, shift, layer).float(), expected, **TOLERANCE)
