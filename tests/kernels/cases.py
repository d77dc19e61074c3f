"""The kernels against torch's own operators in float32.

Triton's interpreter runs them in a process of its own (test_interpreted.py); on a GPU, test_cuda.py runs them compiled.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

import vitkit
from tests.data.test_crop_resize import pack, random_crops
from tests.model.kinds import randomise
from vitkit.compute.fused_vit import FusedViT
from vitkit.config.schema import SGD, AdamW, Fit
from vitkit.data.crop_resize import Crops, crop_resize
from vitkit.kernels import crop_resize_triton, forward
from vitkit.kernels.attention import fused_attention
from vitkit.kernels.attention_triton import attention_backward
from vitkit.kernels.crop_resize_triton import crop_resize_on_gpu
from vitkit.kernels.dispatch import INTERPRETED
from vitkit.kernels.forward import Activation
from vitkit.kernels.fuse import FusedAttention, FusedBlock, fuse, fused_block, fused_module
from vitkit.kernels.gelu_triton import gelu, gelu_backward
from vitkit.kernels.linear import fused_linear
from vitkit.kernels.mlp import fused_mlp
from vitkit.kernels.norm import residual_layer_norm
from vitkit.kernels.rotary_triton import rotate
from vitkit.kernels.swiglu_triton import swiglu, swiglu_backward
from vitkit.model.attention import SelfAttention, split_heads
from vitkit.model.encoder import Block
from vitkit.model.rotary import RotaryPositions
from vitkit.model.variants import configure
from vitkit.train import checkpoint
from vitkit.train.checkpoint_staging import Staging
from vitkit.train.distributed import Processes, parallelize
from vitkit.train.ema import EMA
from vitkit.train.fused_adamw import FusedAdamW, can_fuse
from vitkit.train.mixed_precision import Bf16Copies
from vitkit.train.objectives.labels import Labels
from vitkit.train.optimizer import build_optimizer, set_lr
from vitkit.train.step import Step

DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16
TOLERANCE = {"atol": 2e-5, "rtol": 2e-4} if INTERPRETED else {"atol": 2e-2, "rtol": 2e-2}


def random(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(DTYPE).requires_grad_(grad)


def plain_activation(x: Tensor, kind: str) -> Tensor:
    if kind == "swiglu":
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
    return (
        x * torch.sigmoid(1.702 * x) if kind == "quick" else F.gelu(x, approximate="tanh" if kind == "tanh" else "none")
    )


def in_float32(*tensors: Tensor) -> list[Tensor]:
    """The same numbers in float32, with gradients of their own."""
    return [tensor.detach().float().requires_grad_(tensor.requires_grad) for tensor in tensors]


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


@pytest.mark.parametrize(
    ("size", "channels", "longest"), [((20, 24), 3, 60), ((7, 50), 1, 120), ((16, 30), 5, 40), ((1, 2), 3, 9)]
)
def test_crops_are_resized_to_the_bits_of_the_plain_version(size: tuple[int, int], channels: int, longest: int):
    pixels, crops = pack(*random_crops(0, 5, longest, channels))
    expected = crop_resize(pixels, crops, size, channels)
    moved = {name: value.to(DEVICE) for name, value in vars(crops).items() if isinstance(value, Tensor)}
    found = crop_resize_on_gpu(pixels.to(DEVICE), Crops(**moved, most=crops.most), size, channels)
    assert torch.equal(found.cpu(), expected)


def test_crops_in_several_turns_are_those_of_one(monkeypatch: pytest.MonkeyPatch):
    pixels, crops = pack(*random_crops(1, 5, 30, 3))
    moved = {name: value.to(DEVICE) for name, value in vars(crops).items() if isinstance(value, Tensor)}
    there = (pixels.to(DEVICE), Crops(**moved, most=crops.most), (12, 9), 3)
    at_once = crop_resize_on_gpu(*there)
    monkeypatch.setattr(crop_resize_triton, "CHUNK_BYTES", 1)
    assert torch.equal(crop_resize_on_gpu(*there), at_once)


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
    x, layer = random(*shape, grad=True), _layer(shape[-1]).requires_grad_()
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


def test_second_derivatives_raise_an_error():
    x, weight, bias = random(1, 4, 64, grad=True), random(192, 64, grad=True), random(192, grad=True)
    (first,) = torch.autograd.grad(fused_attention(x, weight, bias, 2).sum(), x, retain_graph=True)
    assert first.isfinite().all()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(fused_attention(x, weight, bias, 2).sum(), x, create_graph=True)


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


@pytest.mark.parametrize("shape", [(2, 5, 32), (6, 32)])
def test_a_linear_layer_in_fp8_has_the_gradients_of_a_plain_one(shape: tuple[int, ...]):
    x, weight, bias = random(*shape, grad=True), random(48, 32, grad=True), random(48, grad=True)
    grad = random(*shape[:-1], 48)
    expected = torch.autograd.grad(F.linear(x, weight, bias), (x, weight, bias), grad)
    out = fused_linear(x, weight, bias, fp8=True)
    assert (out - F.linear(x, weight, bias)).norm() < (0.4 if INTERPRETED else 0.1) * out.norm()
    for ours, theirs in zip(torch.autograd.grad(out, (x, weight, bias), grad), expected, strict=True):
        assert_close(ours, theirs, **TOLERANCE)


def test_mlp_and_attention_in_fp8_have_nearly_the_same_gradients():
    x, grad = random(2, 32, 64, grad=True), random(2, 32, 64)
    layers = [(random(*shape) / 8).requires_grad_() for shape in ((256, 64), (256,), (64, 256), (64,))]
    qkv = [(random(*shape) / 8).requires_grad_() for shape in ((192, 64), (192,))]
    found = []
    for fp8 in (False, True):
        out = fused_mlp(fused_attention(x, *qkv, 2, fp8=fp8), *layers, activation="tanh", fp8=fp8)
        out.backward(grad)
        gradients = [tensor.grad.float() for tensor in (x, *layers, *qkv)]  # type: ignore[union-attr]
        found.append([out.detach().float(), *gradients])
        for tensor in (x, *layers, *qkv):
            tensor.grad = None
    assert not torch.equal(found[0][0], found[1][0])
    for narrow, quantized in zip(*found, strict=True):
        # the interpreter rounds some numbers to half of what they are, see below
        assert (quantized - narrow).norm() < (0.4 if INTERPRETED else 0.1) * narrow.norm()


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


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_fused_adam_updates_weights_as_torchs_own(kind: type[torch.optim.Optimizer]):
    """With groups of their own, a weight that has no gradient at first, and a state that was loaded on the way."""
    shapes = [(8192,), (3, 7), (130, 64), (9001,), (1,)]  # whole pieces, parts of one, and more than one
    ours = [torch.randn(*shape, device=DEVICE, requires_grad=True) for shape in shapes]
    theirs = [tensor.detach().clone().requires_grad_() for tensor in ours]
    optimizer, plain = (
        kind(
            [
                {"params": tensors[:2], "weight_decay": 0.0, "lr": 1e-2},
                {"params": tensors[2:], "weight_decay": 0.1, "lr": 3e-2},
            ]
        )
        for tensors in (ours, theirs)
    )
    copies = Bf16Copies()
    move = FusedAdamW(copies, optimizer)
    copies(ours)
    for number in range(4):
        scale = torch.tensor(1.0 + number, device=DEVICE)
        for weight, other in zip(ours[number == 0 :], theirs[number == 0 :], strict=True):
            weight.grad = torch.randn_like(weight).bfloat16()
            other.grad = weight.grad.float() / scale
        optimizer.param_groups[0]["lr"] = plain.param_groups[0]["lr"] = 1e-2 / (number + 1)
        move(scale)
        plain.step()
        if number == 2:  # as from a checkpoint: other tensors, and the weights changed behind the optimizer's back
            optimizer.load_state_dict(optimizer.state_dict())
            with torch.no_grad():
                for tensor in (*ours, *theirs):
                    tensor.mul_(0.5)
    for weight, other, copy in zip(ours, theirs, copies(ours), strict=True):
        assert_close(weight, other, atol=1e-6, rtol=1e-5)
        for slot in ("step", "exp_avg", "exp_avg_sq"):
            assert_close(optimizer.state[weight][slot], plain.state[other][slot].to(DEVICE), atol=1e-7, rtol=1e-5)
        assert_close(copy, weight.bfloat16(), atol=0, rtol=0)
        assert weight.grad.dtype == torch.bfloat16  # type: ignore[union-attr]


def test_a_backward_pass_after_the_weights_have_changed_is_an_error():
    """Its weights are others by then, and torch has to know."""
    objective = _small_objective()
    shared = parallelize(objective, "none", Processes(torch.device(DEVICE)), "bf16")
    step = Step(shared, build_optimizer(objective, Fit(optimizer=AdamW()), fused=DEVICE == "cuda"), clip=1.0)
    batch = torch.rand(4, 3, 8, 8, device=DEVICE), torch.eye(5, device=DEVICE)[:4]
    loss, _ = shared(*batch)
    step(iter([batch]))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("why", ["parts", "sgd", "float32", "betas", "place"])
def test_where_fused_adamw_does_not_apply_gradients_are_fp32(why: str):
    objective = _small_objective()
    if why == "place":  # in the middle of something else
        norm = objective.model.encoder.norm
        norm.bias = torch.nn.Parameter(torch.zeros(len(norm.bias) + 1, device=DEVICE)[1:])
    batch = torch.rand(4, 3, 8, 8, device=DEVICE), torch.eye(5, device=DEVICE)[:4]
    precision = "fp32" if why == "float32" else "bf16"
    shared = parallelize(objective, "none", Processes(torch.device(DEVICE)), precision)  # type: ignore[arg-type]
    if why != "place":
        fitting = build_optimizer(objective, Fit(optimizer=AdamW()), fused=DEVICE == "cuda")
        assert (Step(shared, fitting, clip=1.0).fused_adamw is None) == (why == "float32")  # another one before it
    config = Fit(optimizer=SGD(), lr=0.1) if why == "sgd" else Fit(optimizer=AdamW(weight_decay=0.1), lr=0.1)
    optimizer = build_optimizer(objective, config, fused=DEVICE == "cuda")
    if why == "betas":
        optimizer.param_groups[0]["betas"] = (0.5, 0.9)
    step = Step(shared, optimizer, clip=1.0, accumulate=2 if why == "parts" else 1)
    assert step.fused_adamw is None
    before = [parameter.clone() for parameter in objective.parameters()]
    step(iter([batch, batch]))
    step.wrapped(*batch)[0].backward()
    for parameter, held in zip(objective.parameters(), before, strict=True):
        assert parameter.grad.dtype == torch.float32  # type: ignore[union-attr]
        assert not torch.equal(parameter, held)


@pytest.mark.parametrize("fresh", [False, True])
def test_fused_adamw_equals_torchs_own_before_and_after_a_checkpoint(
    fresh: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Loaded into the run that wrote it, as when training goes back, or `fresh` into one that has taken no step."""
    monkeypatch.setattr("vitkit.kernels.adam_triton.CHUNK", 1024)  # the interpreter is slow, and tensors are small
    config, one = Fit(optimizer=AdamW(weight_decay=0.1), lr=1e-3), Processes(torch.device(DEVICE))
    batch = torch.rand(4, 3, 8, 8, device=DEVICE), torch.eye(5, device=DEVICE)[:4]
    found = []
    for ours in (True, False):
        monkeypatch.setattr("vitkit.train.step.can_fuse", can_fuse if ours else lambda *_: False)
        runs = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            objective = _small_objective()
            optimizer = build_optimizer(objective, config, fused=DEVICE == "cuda")
            runs.append((objective, optimizer, Step(parallelize(objective, "none", one, "bf16"), optimizer, clip=0.3)))
        objective, optimizer, step = runs[0]
        assert (step.fused_adamw is not None) == ours
        step(iter([batch]))
        staged = Staging(one).copy(checkpoint.state_of(objective, optimizer, None))
        saved = checkpoint.write(tmp_path / str(ours), staged, {"step": 1}, one)
        step(iter([batch]))
        objective, optimizer, step = runs[fresh]
        checkpoint.load(saved, objective, optimizer, None, one)
        stepped = step(iter([batch]))
        found.append({**checkpoint.state_of(objective, optimizer, None), "norm": stepped.norm, "loss": stepped.loss})
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        assert_close(value, found[1][name], atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_the_average_follows_the_master_weights_of_fused_adamw(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vitkit.kernels.adam_triton.CHUNK", 1024)  # the interpreter is slow, and tensors are small
    config, decay = Fit(optimizer=AdamW(), clip=0.3), 0.9
    objective = _small_objective()
    optimizer = build_optimizer(objective, config, fused=DEVICE == "cuda")
    one = Processes(torch.device(DEVICE))
    step, ema = Step(parallelize(objective, "none", one, "bf16"), optimizer, clip=0.3), EMA(objective, decay)
    assert step.fused_adamw is not None
    batch = torch.rand(4, 3, 8, 8, device=DEVICE), torch.eye(5, device=DEVICE)[:4]
    average, total = dict.fromkeys(ema.state(), torch.zeros((), device=DEVICE)), 0.0
    for _ in range(4):
        set_lr(optimizer, 0.01)
        step(iter([batch]))
        ema.update()
        average = {name: decay * average[name] + 0.1 * value for name, value in objective.named_parameters()}
        total = decay * total + 0.1
    for name, value in ema.state().items():
        assert_close(value, average[name].detach() / total, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("rows", "width"), [(5, 48), (9, 192), (1, 16)])
def test_the_shifted_layer_norm_adds_the_shift(rows: int, width: int):
    stream, shift, layer = random(rows, width), torch.randn(width, device=DEVICE), _layer(width)
    expected = F.layer_norm(stream.float() + shift, (width,), layer.weight.float(), layer.bias.float(), layer.eps)
    assert_close(forward.shifted_layer_norm(stream, shift, layer).float(), expected, **TOLERANCE)


@pytest.mark.parametrize("has_branch", [True, False])
def test_the_layer_norm_in_fp8_is_within_a_16th(has_branch: bool):
    stream, branch, layer = random(9, 192), random(9, 192) if has_branch else None, _layer(192)
    total, quantized = forward.add_layer_norm_fp8(stream, branch, layer)
    whole = stream.float() + (0 if branch is None else branch.float())
    assert_close(total.float(), whole, **TOLERANCE)
    _check_fp8(quantized, F.layer_norm(total.float(), (192,), layer.weight.float(), layer.bias.float(), layer.eps))


@pytest.mark.parametrize("activation", ["tanh", "exact", "quick", "swiglu"])
def test_an_activation_in_fp8_is_within_a_16th(activation: Activation):
    before = random(7, 300)
    exact = plain_activation(before.float(), activation)
    # SwiGLU is rounded to the dtype of its input before it is quantised; bf16 has 8 bits
    rounding = 2**-8 if activation == "swiglu" and not INTERPRETED else 0.0
    _check_fp8(forward.activate_fp8(before, activation), exact, rounding)


def _small_objective() -> Labels:
    model = vitkit.create("mu/4", image=8, classes=5, depth=1)
    torch.nn.init.normal_(model.head.logits.weight)  # else only these would have a gradient
    return Labels(model, multilabel=False, smoothing=0.0, weights=None).to(DEVICE)


def _check_fp8(quantized: forward.Fp8Rows, exact: Tensor, rounding: float = 0.0) -> None:
    """The largest number of each row is the largest of 8 bits, and others are within half a step."""
    values, scales = quantized
    assert_close(scales, exact.abs().amax(dim=1, keepdim=True) / 448, atol=1e-6, rtol=1e-3 + rounding)
    error = (values.float() * scales - exact).abs()
    close = error <= exact.abs() * (1 / 16 + 2 * rounding) + scales * 2**-9
    if INTERPRETED:  # its conversion forgets to carry into the exponent when a mantissa rounds up to the next power
        carried = torch.frexp(exact / scales)[0].abs() > 15 / 16
        close |= carried
    assert close.all()


def _layer(width: int) -> torch.nn.LayerNorm:
    layer = torch.nn.LayerNorm(width, eps=1e-6)
    torch.nn.init.normal_(layer.weight, 1.0)
    torch.nn.init.normal_(layer.bias)
    return layer.to(DEVICE, DTYPE).requires_grad_(False)
