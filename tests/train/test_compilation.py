"""When compiling pays, what happens when it fails, and that going through blocks twice changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from tests.model.kinds import images_for, make
from tests.train.runs import losses, toy, trained, weights
from vitkit.config.schema import AdamW, Schedule
from vitkit.errors import ConfigError
from vitkit.model.build import Model, build
from vitkit.model.variants import configure
from vitkit.train import microbatch
from vitkit.train.compilation import compile_now, expected_seconds, expected_share, weighed
from vitkit.train.distributed import Processes
from vitkit.train.mixed_precision import Narrow
from vitkit.train.objectives.labels import Labels

CPU = torch.device("cpu")


@pytest.mark.parametrize(("costs", "saves", "pays"), [(34, 33, False), (34, 35, True), (52, 7000, True)])
def test_what_saves_less_than_it_costs_is_left_alone_and_both_are_said(costs: float, saves: float, pays: bool):
    found = weighed(costs, saves)
    assert found.pays == pays
    assert f"some {costs} s" in found.words
    assert ("117 min" if saves == 7000 else f"{saves} s") in found.words


def test_deeper_models_take_longer():
    assert expected_seconds(make("token")) < expected_seconds(make("ResNet"))


def test_wide_models_that_are_launched_as_one_gain_little():
    with torch.device("meta"):
        shares = [expected_share(build(configure(name)), recorded=True) for name in ("Ti/16", "S/16", "B/16")]
    assert shares == sorted(shares, reverse=True)
    assert expected_share(make("token"), recorded=False) == expected_share(make("ResNet"), recorded=True) == 0.07


def test_a_compiler_that_fails_is_an_error_only_where_it_was_asked_for():
    objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)

    def broken(graph: torch.fx.GraphModule, example: object) -> None:
        raise RuntimeError("no compiler\nand a long tail")

    objective.compile(backend=broken)
    with pytest.raises(ConfigError, match="could not compile"):
        compile_now(objective, objective, 2, CPU, must=True)
    assert "going on without" in compile_now(objective, objective, 2, CPU, must=False)
    loss, _ = objective(torch.rand(2, 3, 32, 32), torch.eye(10)[:2])
    assert loss.isfinite()
    assert all(parameter.grad is None for parameter in objective.parameters())


@pytest.mark.parametrize("kind", ["token", "gap", "axial", "relative", "hybrid"])
def test_going_through_blocks_again_gives_the_same_gradients_for_less_memory(kind: str):
    model = make(kind).train()
    images = images_for(model, 3)
    found = []
    for recompute in (False, True):
        model.encoder.recompute = recompute
        loss, kept = counted(model, images)
        loss.backward()
        found.append(([parameter.grad.clone() for parameter in model.parameters()], kept))
        model.zero_grad()
    for once, twice in zip(found[0][0], found[1][0], strict=True):
        assert_close(twice, once)
    if kind != "hybrid":  # whose stem keeps the most
        assert found[1][1] < 0.5 * found[0][1]


@pytest.mark.parametrize("kind", ["token", "axial", "hybrid"])
def test_in_bf16_blocks_are_gone_through_again_with_the_weights_of_the_first_time(kind: str):
    model = make(kind)
    objective = Labels(model, multilabel=False, smoothing=0.0, weights=None)
    pixels = images_for(model, 2)
    found = []
    for recompute in (False, True):
        model.encoder.recompute = recompute
        loss, _ = Narrow(objective)(pixels, torch.eye(10)[:2])
        loss.backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
        objective.zero_grad()
    for once, twice in zip(*found, strict=True):
        assert_close(twice, once, atol=1e-6, rtol=1e-4)


def test_what_is_looked_at_stays_as_it_was_seen():
    model = make("token")
    model.encoder.recompute = True
    logits, seen = model(images_for(model, 2), ("block0/attention",))
    before = seen["block0/attention"].detach().clone()
    logits.sum().backward()
    assert torch.equal(seen["block0/attention"], before)


def test_a_size_that_was_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch):
    objective = Labels(make("token"), multilabel=False, smoothing=0.0, weights=None)
    monkeypatch.setattr(microbatch, "pick_micro", lambda *given: 64)
    asked = {"share": 64, "processes": Processes(torch.device("cuda")), "precision": "bf16", "recompute": "auto"}
    assert microbatch.settle(objective, micro=8, **asked) == (8, False)
    assert microbatch.settle(objective, micro=None, **asked) == (64, False)
    monkeypatch.setattr(microbatch, "pick_micro", lambda given, *rest: 32 if given.model.encoder.recompute else 4)
    assert microbatch.settle(objective, micro=None, **asked) == (32, True)


def counted(model: Model, images: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A loss, and how many numbers are kept for its gradient."""
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(images).square().sum()
    return loss, sum(kept)


def test_a_run_that_goes_through_blocks_again_is_the_same_run_dropout_included(tmp_path: Path):
    how = {"steps": 4, "lr": 1e-3, "optimizer": AdamW(weight_decay=0.1), "schedule": Schedule(), "dropout": 0.2}
    once = trained(toy(tmp_path / "once", **how))
    twice = trained(toy(tmp_path / "twice", recompute="yes", **how))
    assert 'recompute = "yes"' in (twice / "config.toml").read_text()
    assert 'recompute = "no"' in (once / "config.toml").read_text()
    assert_close(losses(twice), losses(once), atol=1e-6, rtol=0)
    for name, tensor in weights(once).items():
        assert_close(weights(twice)[name], tensor)


def test_8_bit_products_are_refused_where_nothing_multiplies_them(tmp_path: Path):
    with pytest.raises(ConfigError, match="fp8 = true needs 8-bit floats and Triton: cpu does not multiply them"):
        trained(toy(tmp_path / "run", steps=1, fp8=True))
