"""When a run is compiled, what happens when that fails, and that activation checkpointing changes no result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from tests.model.kinds import images_for, make
from tests.train.runs import losses, toy, train_run, weights
from vitkit.config.schema import AdamW, Schedule
from vitkit.errors import ConfigError
from vitkit.model.build import Model, build
from vitkit.model.variants import configure
from vitkit.train import microbatch
from vitkit.train.activation_checkpointing import recomputes, set_recompute
from vitkit.train.compilation import compare, compile_seconds, expected_saving, warm_up_compiled
from vitkit.train.distributed import Processes
from vitkit.train.mixed_precision import MixedPrecision
from vitkit.train.objectives.labels import Labels

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("cost", "saving", "compiles", "description"),
    [
        (34, 33, False, "not compiled (saves 33 s, costs 34 s)"),
        (34, 35, True, "compiled (saves 35 s, costs 34 s)"),
        (52, 7000, True, "compiled (saves 1 h 56 min, costs 52 s)"),
    ],
)
def test_a_run_is_compiled_where_that_saves_more_than_it_costs(
    cost: float, saving: float, compiles: bool, description: str
):
    decision = compare(cost, saving)
    assert decision.compiles == compiles
    assert decision.description == description


def test_deeper_models_take_longer_to_compile():
    assert compile_seconds(make("token")) < compile_seconds(make("ResNet"))


def test_compiling_saves_less_in_wide_models_with_a_cuda_graph():
    with torch.device("meta"):
        shares = [expected_saving(build(configure(name)), captured=True) for name in ("Ti/16", "S/16", "B/16")]
    assert shares == sorted(shares, reverse=True)
    assert expected_saving(make("token"), captured=False) == expected_saving(make("ResNet"), captured=True) == 0.07


def test_a_compiler_that_fails_is_an_error_only_where_compiling_was_requested():
    objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)

    def broken(graph: torch.fx.GraphModule, example: object) -> None:
        raise RuntimeError("no compiler\nand a long tail")

    objective.compile(backend=broken)
    with pytest.raises(ConfigError, match=r"torch\.compile failed"):
        warm_up_compiled(objective, objective, 2, CPU, must=True)
    assert "running in eager mode" in warm_up_compiled(objective, objective, 2, CPU, must=False)
    loss, _ = objective(torch.rand(2, 3, 32, 32), torch.eye(10)[:2])
    assert loss.isfinite()
    assert all(parameter.grad is None for parameter in objective.parameters())


@pytest.mark.parametrize("kind", ["token", "gap", "axial", "relative", "hybrid"])
def test_activation_checkpointing_gives_the_same_gradients_with_less_memory(kind: str):
    model = make(kind).train()
    images = images_for(model, 3)
    results = []
    for recompute in (False, True):
        set_recompute(model, recompute)
        loss, kept = count_saved(model, images)
        loss.backward()
        results.append(([parameter.grad.clone() for parameter in model.parameters()], kept))
        model.zero_grad()
    for once, twice in zip(results[0][0], results[1][0], strict=True):
        assert_close(twice, once)
    if kind != "hybrid":  # most activations are those of the stem
        assert results[1][1] < 0.5 * results[0][1]


@pytest.mark.parametrize("kind", ["token", "axial", "hybrid"])
def test_activation_checkpointing_recomputes_with_the_bf16_copies_of_forward(kind: str):
    model = make(kind)
    objective = Labels(model, multilabel=False, smoothing=0.0, weights=None)
    pixels = images_for(model, 2)
    results = []
    for recompute in (False, True):
        set_recompute(model, recompute)
        loss, _ = MixedPrecision(objective)(pixels, torch.eye(10)[:2])
        loss.backward()
        results.append([parameter.grad.clone() for parameter in model.parameters()])
        objective.zero_grad()
    for once, twice in zip(*results, strict=True):
        assert_close(twice, once, atol=1e-6, rtol=1e-4)


def test_captured_activations_do_not_change_in_backward():
    model = make("token")
    set_recompute(model, True)
    logits, seen = model(images_for(model, 2), ("block0/attention",))
    before = seen["block0/attention"].detach().clone()
    logits.sum().backward()
    assert torch.equal(seen["block0/attention"], before)


def test_a_requested_micro_batch_is_kept(monkeypatch: pytest.MonkeyPatch):
    objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)
    monkeypatch.setattr(microbatch, "largest_micro_batch", lambda *arguments: 64)
    options = {"share": 64, "processes": Processes(torch.device("cuda")), "precision": "bf16", "recompute": "auto"}
    assert microbatch.choose_micro_batch(objective, micro=8, **options) == (8, False)
    assert microbatch.choose_micro_batch(objective, micro=None, **options) == (64, False)
    monkeypatch.setattr(
        microbatch, "largest_micro_batch", lambda objective, *rest: 32 if recomputes(objective.model) else 4
    )
    assert microbatch.choose_micro_batch(objective, micro=None, **options) == (32, True)


def count_saved(model: Model, images: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a loss and the number of activations that are saved for backward."""
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(images).square().sum()
    return loss, sum(kept)


def test_a_run_with_activation_checkpointing_is_the_same_run_with_dropout(tmp_path: Path):
    settings = {"steps": 4, "lr": 1e-3, "optimizer": AdamW(weight_decay=0.1), "schedule": Schedule(), "dropout": 0.2}
    once = train_run(toy(tmp_path / "once", **settings))
    twice = train_run(toy(tmp_path / "twice", recompute="yes", **settings))
    assert 'recompute = "yes"' in (twice / "config.toml").read_text()
    assert 'recompute = "no"' in (once / "config.toml").read_text()
    assert_close(losses(twice), losses(once), atol=1e-6, rtol=0)
    for name, tensor in weights(once).items():
        assert_close(weights(twice)[name], tensor)


def test_fp8_training_is_an_error_where_the_device_does_not_support_it(tmp_path: Path):
    with pytest.raises(ConfigError, match="fp8 = true needs 8-bit floats and Triton: cpu does not support fp8"):
        train_run(toy(tmp_path / "run", steps=1, fp8=True))
