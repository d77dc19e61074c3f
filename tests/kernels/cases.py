"""The fused kernels beside torch's own operators in float32. Run by Triton's interpreter in a process of its own
(test_interpreted.py), or by pytest on a GPU, compiled (test_cuda.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

import vitkit
from vitkit.config.schema import SGD, AdamW, Fit
from vitkit.kernels import forward
from vitkit.kernels.attention import attend, split
from vitkit.kernels.attention_triton import attention_backward
from vitkit.kernels.dispatch import INTERPRETED
from vitkit.kernels.gelu_triton import gelu, gelu_backward
from vitkit.kernels.linear import fused_linear
from vitkit.kernels.mlp import mlp
from vitkit.kernels.norm import beside
from vitkit.model.attention import SelfAttention
from vitkit.model.encoder import Block
from vitkit.model.variants import configure
from vitkit.train import checkpoint
from vitkit.train.distributed import Processes, share
from vitkit.train.fused_adamw import OnePass, suits
from vitkit.train.mixed_precision import Copies
from vitkit.train.objectives.labels import Labels
from vitkit.train.optimizer import build_optimizer
from vitkit.train.step import Step

DEVICE = "cpu" if INTERPRETED else "cuda"
NUMBERS = torch.float32 if INTERPRETED else torch.bfloat16
TOLERANCE = {"atol": 2e-5, "rtol": 2e-4} if INTERPRETED else {"atol": 2e-2, "rtol": 2e-2}


def drawn(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(NUMBERS).requires_grad_(grad)


def wide(*tensors: Tensor) -> list[Tensor]:
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
def test_attention_backward_is_that_of_torch(batch: int, tokens: int, heads: int, width: int):
    qkv, grad = drawn(batch, tokens, 3 * heads * width, grad=True), drawn(batch, tokens, heads * width)
    (exact,) = wide(qkv)
    query, key, value = split(exact, heads)
    mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    logs = (query @ key.transpose(-2, -1) * width**-0.5).logsumexp(dim=-1)
    mixed.backward(grad.float())
    with torch.no_grad():
        found, sums = attention_backward(grad, qkv, mixed.to(NUMBERS), logs)
    assert_close(found.float(), exact.grad, **TOLERANCE)
    assert_close(sums.sum(0), exact.grad.sum((0, 1)), atol=10 * TOLERANCE["atol"], rtol=TOLERANCE["rtol"])


@pytest.mark.parametrize("tokens", [5, 70])
def test_attending_learns_as_torch_does(tokens: int):
    given = [drawn(2, tokens, 64, grad=True), (drawn(192, 64) / 8).requires_grad_(), drawn(192, grad=True)]
    grad = drawn(2, tokens, 64)
    x, weight, bias = exact = wide(*given)
    mixed = F.scaled_dot_product_attention(*split(F.linear(x, weight, bias), 2)).transpose(1, 2).flatten(2)
    mixed.backward(grad.float())
    told = attend(*given, 2)
    told.backward(grad)
    assert_close(told.float(), mixed, **TOLERANCE)
    for ours, theirs in zip(given, exact, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert (ours.grad.float() - theirs.grad).norm() < (1e-4 if INTERPRETED else 2e-2) * theirs.grad.norm()


@pytest.mark.parametrize("tanh", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(130, 300), (1, 7), (300, 129)])
def test_gelu_and_its_backward_are_torchs(tanh: bool, rows: int, columns: int):
    before, grad = 3 * drawn(rows, columns), drawn(rows, columns)
    (exact,) = wide(before.requires_grad_())
    after = F.gelu(exact, approximate="tanh" if tanh else "none")
    after.backward(grad.float())
    with torch.no_grad():
        found, again, sums = gelu_backward(grad, before, tanh)
        assert_close(gelu(before, tanh).float(), after, **TOLERANCE)
    assert_close(again.float(), after, **TOLERANCE)
    assert_close(found.float(), exact.grad, **TOLERANCE)
    assert_close(sums.sum(0), exact.grad.sum(0), atol=10 * TOLERANCE["atol"], rtol=TOLERANCE["rtol"])


@pytest.mark.parametrize("shape", [(2, 5, 24), (7, 24)])
@pytest.mark.parametrize("tanh", [True, False])
def test_an_mlp_learns_as_torch_does(tanh: bool, shape: tuple[int, ...]):
    given = [
        drawn(*shape, grad=True),
        drawn(96, 24, grad=True),
        drawn(96, grad=True),
        drawn(24, 96, grad=True),
        drawn(24, grad=True),
    ]
    grad = drawn(*shape)
    x, up, up_bias, down, down_bias = exact = wide(*given)
    out = F.linear(F.gelu(F.linear(x, up, up_bias), approximate="tanh" if tanh else "none"), down, down_bias)
    out.backward(grad.float())
    told = mlp(*given, tanh=tanh)
    told.backward(grad)
    assert (told.float() - out).norm() < (1e-5 if INTERPRETED else 1e-2) * out.norm()
    for ours, theirs in zip(given, exact, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert (ours.grad.float() - theirs.grad).norm() < (1e-4 if INTERPRETED else 2e-2) * theirs.grad.norm()


@pytest.mark.parametrize("shape", [(2, 5, 48), (130, 192), (1, 1, 16)])
def test_a_norm_beside_its_stream_learns_as_torchs_does(shape: tuple[int, ...]):
    x, layer = drawn(*shape, grad=True), _layer(shape[-1]).requires_grad_()
    past, through = drawn(*shape), drawn(*shape)
    exact, weight, bias = wide(x, layer.weight, layer.bias)
    (exact * past.float() + F.layer_norm(exact, shape[-1:], weight, bias, layer.eps) * through.float()).sum().backward()
    stream, normed = beside(layer, x)
    assert torch.equal(stream, x)
    torch.autograd.backward((stream, normed), (past, through))
    for ours, theirs in ((x, exact), (layer.weight, weight), (layer.bias, bias)):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert (ours.grad.float() - theirs.grad).norm() < (1e-4 if INTERPRETED else 2e-2) * theirs.grad.norm() + 1e-5


def test_second_derivatives_are_refused_instead_of_wrong():
    x, weight, bias = drawn(1, 4, 64, grad=True), drawn(192, 64, grad=True), drawn(192, grad=True)
    (first,) = torch.autograd.grad(attend(x, weight, bias, 2).sum(), x, retain_graph=True)
    assert first.isfinite().all()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(attend(x, weight, bias, 2).sum(), x, create_graph=True)


@pytest.mark.parametrize(("shape", "out"), [((2, 5, 32), 48), ((700, 16), 65), ((257, 8), 200), ((1, 8), 1)])
@pytest.mark.parametrize("learns", [True, False])
def test_a_linear_layer_learns_as_torchs_does(shape: tuple[int, ...], out: int, learns: bool):
    """Whether what goes into it learns too or, like pixels, does not."""
    x, weight, bias = drawn(*shape, grad=learns), drawn(out, shape[-1], grad=True), drawn(out, grad=True)
    grad, learning = drawn(*shape[:-1], out), [tensor for tensor in (x, weight, bias) if tensor.requires_grad]
    expected, ours = F.linear(x, weight, bias), fused_linear(x, weight, bias)
    assert torch.equal(ours, expected)
    for one, other in zip(
        torch.autograd.grad(ours, learning, grad), torch.autograd.grad(expected, learning, grad), strict=True
    ):
        assert_close(one, other, **TOLERANCE)


class Adapted(torch.nn.Linear):
    """As those who train a few numbers beside a layer write it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


LAYERS = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("wanted", [None, 1])
def test_who_looks_at_a_layer_sees_it(dropout: float, wanted: int | None):
    block, seen = Block(configure("mu/16", image=64, width=64, heads=2, mlp=128, dropout=dropout), drop=0.0), []
    block.to(DEVICE, NUMBERS)
    for name in LAYERS:
        block.get_submodule(name).register_forward_hook(lambda *given, name=name: seen.append(name))
    block(drawn(2, 17, 64, grad=True), None, {}, "block0", wanted=wanted)
    assert seen == [*LAYERS]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("wanted", [None, 1])
def test_what_is_put_in_the_place_of_a_layer_is_called(name: str, wanted: int | None):
    block = Block(configure("mu/16", image=64, width=64, heads=2, mlp=128), drop=0.0).to(DEVICE, NUMBERS).eval()
    x, layer = drawn(2, 17, 64, grad=True), block.get_submodule(name)
    adapted = Adapted(layer.in_features, layer.out_features, device=DEVICE, dtype=NUMBERS)
    adapted.load_state_dict(layer.state_dict())
    block.set_submodule(name, adapted)
    found = block(x, None, {}, "block0", wanted=wanted)
    block.set_submodule(name, layer)
    with torch.no_grad():
        layer.bias += 1
    assert_close(found, block(x, None, {}, "block0", wanted=wanted), **TOLERANCE)


@pytest.mark.parametrize("shape", [(2, 5, 32), (6, 32)])
def test_a_linear_layer_of_8_bit_numbers_learns_as_a_plain_one(shape: tuple[int, ...]):
    x, weight, bias = drawn(*shape, grad=True), drawn(48, 32, grad=True), drawn(48, grad=True)
    grad = drawn(*shape[:-1], 48)
    expected = torch.autograd.grad(F.linear(x, weight, bias), (x, weight, bias), grad)
    out = fused_linear(x, weight, bias, fp8=True)
    assert (out - F.linear(x, weight, bias)).norm() < (0.4 if INTERPRETED else 0.1) * out.norm()
    for ours, theirs in zip(torch.autograd.grad(out, (x, weight, bias), grad), expected, strict=True):
        assert_close(ours, theirs, **TOLERANCE)


def test_with_8_bit_products_an_mlp_and_attention_learn_nearly_the_same():
    x, grad = drawn(2, 32, 64, grad=True), drawn(2, 32, 64)
    layers = [(drawn(*shape) / 8).requires_grad_() for shape in ((256, 64), (256,), (64, 256), (64,))]
    qkv = [(drawn(*shape) / 8).requires_grad_() for shape in ((192, 64), (192,))]
    found = []
    for fp8 in (False, True):
        out = mlp(attend(x, *qkv, 2, fp8=fp8), *layers, tanh=True, fp8=fp8)
        out.backward(grad)
        gradients = [tensor.grad.float() for tensor in (x, *layers, *qkv)]  # type: ignore[union-attr]
        found.append([out.detach().float(), *gradients])
        for tensor in (x, *layers, *qkv):
            tensor.grad = None
    assert not torch.equal(found[0][0], found[1][0])
    for narrow, rounded in zip(*found, strict=True):
        # the interpreter rounds some numbers to half of what they are, see below
        assert (rounded - narrow).norm() < (0.4 if INTERPRETED else 0.1) * narrow.norm()


def test_the_first_token_attends_and_learns_as_it_does_among_all():
    attention = SelfAttention(width=64, heads=2).to(DEVICE, NUMBERS)
    x = drawn(3, 21, 64, grad=True)
    found = []
    for alone in (attention(x, wanted=1), attention(x)[:, :1]):
        alone.float().square().sum().backward()
        found.append([alone.float(), x.grad, *(parameter.grad for parameter in attention.parameters())])
        x.grad = None
        attention.zero_grad()
    for one, other in zip(*found, strict=True):
        assert_close(one, other, **TOLERANCE)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_adam_in_one_pass_moves_weights_as_torchs_own(kind: type[torch.optim.Optimizer]):
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
    copies = Copies()
    move = OnePass(copies, optimizer)
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


def test_a_pass_from_before_a_step_is_not_gone_back_through_after_it():
    """Its weights are others by then, and torch has to know."""
    objective = _small()
    shared = share(objective, "none", Processes(torch.device(DEVICE)), "bf16")
    step = Step(shared, build_optimizer(objective, Fit(optimizer=AdamW()), fused=DEVICE == "cuda"), clip=1.0)
    batch = torch.rand(4, 3, 8, 8, device=DEVICE), torch.eye(5, device=DEVICE)[:4]
    loss, _ = shared(*batch)
    step(iter([batch]))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("why", ["parts", "sgd", "float32", "betas", "place"])
def test_other_steps_are_torchs_own_with_gradients_as_wide_as_weights(why: str):
    objective = _small()
    if why == "place":  # in the middle of something else
        norm = objective.model.encoder.norm
        norm.bias = torch.nn.Parameter(torch.zeros(len(norm.bias) + 1, device=DEVICE)[1:])
    batch = torch.rand(4, 3, 8, 8, device=DEVICE), torch.eye(5, device=DEVICE)[:4]
    precision = "fp32" if why == "float32" else "bf16"
    shared = share(objective, "none", Processes(torch.device(DEVICE)), precision)  # type: ignore[arg-type]
    if why != "place":
        fitting = build_optimizer(objective, Fit(optimizer=AdamW()), fused=DEVICE == "cuda")
        assert (Step(shared, fitting, clip=1.0).one_pass is None) == (why == "float32")  # another one before it
    config = Fit(optimizer=SGD(), lr=0.1) if why == "sgd" else Fit(optimizer=AdamW(weight_decay=0.1), lr=0.1)
    optimizer = build_optimizer(objective, config, fused=DEVICE == "cuda")
    if why == "betas":
        optimizer.param_groups[0]["betas"] = (0.5, 0.9)
    step = Step(shared, optimizer, clip=1.0, parts=2 if why == "parts" else 1)
    assert step.one_pass is None
    before = [parameter.clone() for parameter in objective.parameters()]
    step(iter([batch, batch]))
    step.shared(*batch)[0].backward()
    for parameter, held in zip(objective.parameters(), before, strict=True):
        assert parameter.grad.dtype == torch.float32  # type: ignore[union-attr]
        assert not torch.equal(parameter, held)


@pytest.mark.parametrize("again", [False, True])
def test_steps_in_one_pass_are_torchs_own_before_and_after_a_checkpoint(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Loaded into the run that wrote it, as when training goes back, or `again` into one that has taken no step."""
    monkeypatch.setattr("vitkit.kernels.adam_triton.PIECE", 1024)  # the interpreter is slow, and tensors are small
    config, one = Fit(optimizer=AdamW(weight_decay=0.1), lr=1e-3), Processes(torch.device(DEVICE))
    batch = torch.rand(4, 3, 8, 8, device=DEVICE), torch.eye(5, device=DEVICE)[:4]
    found = []
    for ours in (True, False):
        monkeypatch.setattr("vitkit.train.step.suits", suits if ours else lambda *given: False)
        runs = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            objective = _small()
            optimizer = build_optimizer(objective, config, fused=DEVICE == "cuda")
            runs.append((objective, optimizer, Step(share(objective, "none", one, "bf16"), optimizer, clip=0.3)))
        objective, optimizer, step = runs[0]
        assert (step.one_pass is not None) == ours
        step(iter([batch]))
        saved = checkpoint.save(tmp_path / str(ours), checkpoint.state_of(objective, optimizer, None), {"step": 1}, one)
        step(iter([batch]))
        objective, optimizer, step = runs[again]
        checkpoint.load(saved, objective, optimizer, None, one)
        stepped = step(iter([batch]))
        found.append({**checkpoint.state_of(objective, optimizer, None), "norm": stepped.norm, "loss": stepped.loss})
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        assert_close(value, found[1][name], atol=1e-5, rtol=1e-4, msg=lambda told, name=name: f"{name}: {told}")


@pytest.mark.parametrize(("rows", "width"), [(5, 48), (9, 192), (1, 16)])
def test_a_norm_reads_the_stream_with_what_was_not_added(rows: int, width: int):
    stream, shift, layer = drawn(rows, width), torch.randn(width, device=DEVICE), _layer(width)
    expected = F.layer_norm(stream.float() + shift, (width,), layer.weight.float(), layer.bias.float(), layer.eps)
    assert_close(forward.norm(stream, shift, layer).float(), expected, **TOLERANCE)


@pytest.mark.parametrize("adds", [True, False])
def test_a_norm_in_8_bits_is_the_norm_within_a_16th(adds: bool):
    stream, branch, layer = drawn(9, 192), drawn(9, 192) if adds else None, _layer(192)
    total, rounded = forward.norm_rounded(stream, branch, layer)
    whole = stream.float() + (0 if branch is None else branch.float())
    assert_close(total.float(), whole, **TOLERANCE)
    _check_rounded(rounded, F.layer_norm(total.float(), (192,), layer.weight.float(), layer.bias.float(), layer.eps))


@pytest.mark.parametrize("tanh", [True, False])
def test_gelu_in_8_bits_is_gelu_within_a_16th(tanh: bool):
    before = drawn(7, 300)
    _check_rounded(
        forward.gelu_rounded(before, tanh=tanh), F.gelu(before.float(), approximate="tanh" if tanh else "none")
    )


def _small() -> Labels:
    model = vitkit.create("mu/4", image=8, classes=5, depth=1)
    torch.nn.init.normal_(model.head.logits.weight)  # else only these would have a gradient
    return Labels(model, multilabel=False, smoothing=0.0, weights=None).to(DEVICE)


def _check_rounded(rounded: forward.Rounded, exact: Tensor) -> None:
    """The largest number of each row is the largest of 8 bits, and others are within half a step."""
    values, scales = rounded
    assert_close(scales, exact.abs().amax(dim=1, keepdim=True) / 448, atol=1e-6, rtol=1e-3)
    error = (values.float() * scales - exact).abs()
    close = error <= exact.abs() / 16 + scales * 2**-9
    if INTERPRETED:  # its conversion forgets to carry into the exponent when a mantissa rounds up to the next power
        carried = torch.frexp(exact / scales)[0].abs() > 15 / 16
        close |= carried
    assert close.all()


def _layer(width: int) -> torch.nn.LayerNorm:
    layer = torch.nn.LayerNorm(width, eps=1e-6)
    torch.nn.init.normal_(layer.weight, 1.0)
    torch.nn.init.normal_(layer.bias)
    return layer.to(DEVICE, NUMBERS).requires_grad_(False)
