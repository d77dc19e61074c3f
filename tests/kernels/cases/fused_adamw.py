"""Fused AdamW, in steps of training, against torch's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from tests.kernels.cases.numbers import (
    DEVICE,
    small_objective,
)
from vitkit.config.schema import SGD, AdamW, Fit
from vitkit.train import checkpoint
from vitkit.train.checkpoint_staging import Staging
from vitkit.train.distributed import Processes, parallelize
from vitkit.train.ema import EMA
from vitkit.train.fused_adamw import FusedAdamW, can_fuse
from vitkit.train.mixed_precision import Bf16Copies
from vitkit.train.optimizer import build_optimizer, set_lr
from vitkit.train.step import Step


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
    objective = small_objective()
    shared = parallelize(objective, "none", Processes(torch.device(DEVICE)), "bf16")
    step = Step(shared, build_optimizer(objective, Fit(optimizer=AdamW()), fused=DEVICE == "cuda"), clip=1.0)
    batch = torch.rand(4, 3, 8, 8, device=DEVICE), torch.eye(5, device=DEVICE)[:4]
    loss, _ = shared(*batch)
    step(iter([batch]))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("why", ["parts", "sgd", "float32", "betas", "place"])
def test_where_fused_adamw_does_not_apply_gradients_are_fp32(why: str):
    objective = small_objective()
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
            objective = small_objective()
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
    objective = small_objective()
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
