"""EMA of the weights: against a plain loop, torch's AveragedModel, over whole runs, and with FSDP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.train.runs import poison, rewind, same_tensors, toy, train_run, weights
from vitkit.config.schema import AdamW, Augmentation, Schedule
from vitkit.run_folder import RunFolder
from vitkit.train import loop
from vitkit.train.checkpoint import write_record
from vitkit.train.ema import EMA
from vitkit.train.step import Step, StepResult
from vitkit.weights.run_checkpoints import complete_checkpoints, read_record


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def train(module: nn.Module, average: EMA, steps: int) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
        average.update()


def plain_average(history: Iterable[Any], decay: float) -> Any:
    """Average as Adam does its moments: from zero, then divided by the sum of the weights."""
    average = total = 0.0
    for values in history:
        average = decay * average + (1 - decay) * values
        total = decay * total + (1 - decay)
    return average / total


@given(decay=st.floats(0.1, 0.99999), steps=st.integers(1, 40), seed=st.integers(0, 1000))
def test_averages_are_those_of_a_plain_loop(decay: float, steps: int, seed: int):
    values = np.random.default_rng(seed).normal(size=(steps + 1, 4))
    module = nn.Linear(4, 1, bias=False).double()
    module.weight.data[:] = torch.from_numpy(values[0])
    average = EMA(module, decay)
    for row in values[1:]:
        module.weight.data[:] = torch.from_numpy(row)
        average.update()
    np.testing.assert_allclose(average.state()["weight"][0], plain_average(values[1:], decay), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.9999])
def test_averages_are_torchs_uncorrected_ones_without_the_share_of_the_first_weights(decay: float):
    module = network()
    first = {name: value.detach().clone() for name, value in module.named_parameters()}
    average, theirs = EMA(module, decay), AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(decay))
    theirs.update_parameters(module)  # torch's first call copies
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(20):
        module(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
        average.update()
        theirs.update_parameters(module)
    state, left = average.state(), decay**20
    for name, value in theirs.module.named_parameters():
        corrected = (value.detach().double() - left * first[name].double()) / (1 - left)
        # torch's fp32 average has errors of a rounding or so, which the division enlarges
        torch.testing.assert_close(state[name].double(), corrected, rtol=0, atol=4e-7 / (1 - left))


def test_a_short_run_with_a_high_decay_is_about_the_mean_of_its_steps():
    module = nn.Linear(1, 1, bias=False).double()
    average = EMA(module, 0.9999)
    for value in range(1, 101):
        module.weight.data.fill_(value)
        average.update()
    assert average.state()["weight"].item() == pytest.approx(np.mean(np.arange(1, 101)), rel=2e-3)


def test_after_20_000_steps_the_decay_is_the_announced_one_and_the_start_is_forgotten():
    module = nn.Linear(1, 1, bias=False).double()
    module.weight.data.fill_(1e9)
    average = EMA(module, 0.9999)
    module.weight.data.zero_()
    for _ in range(20_000):
        average.update()
    assert average.state()["weight"].item() == 0.0
    module.weight.data.fill_(1.0)
    average.update()
    assert average.state()["weight"].item() == pytest.approx(1e-4 / (1 - np.exp(20_001 * np.log(0.9999))))


# Whole runs of 300 steps


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """The model's weights after each optimizer step of the runs in this test."""
    kept: list[dict[str, torch.Tensor]] = []

    class RecordingStep(Step):
        def __call__(self, *arguments: Any) -> StepResult:
            result = super().__call__(*arguments)
            weights = {name: value.detach().double().cpu() for name, value in self.wrapped.named_parameters()}
            kept.append({name.rpartition("model.")[2]: value for name, value in weights.items()})
            return result

    monkeypatch.setattr(loop, "Step", RecordingStep)
    return kept


def assert_averaged(run: Path, history: list[dict[str, torch.Tensor]], decay: float) -> None:
    saved = weights(run)
    for name, value in saved.items():
        expected = plain_average([one[name] for one in history], decay)
        # each of 300 updates rounds to fp32 once or twice, in either direction
        torch.testing.assert_close(value.double(), expected, rtol=0, atol=20 * 2**-24 * max(1, expected.abs().max()))
    assert any(not torch.allclose(value.double(), history[-1][name], atol=1e-4) for name, value in saved.items())


SETTINGS: dict[str, Any] = {
    "steps": 300,
    "lr": 0.01,
    "schedule": Schedule(kind="constant"),
    "save_every": 100,
    "augment": Augmentation(crop=None),
}
on_gpu = pytest.mark.gpu


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("decay", [0.9, 0.9999])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"micro": 16}, id="plain"),
        pytest.param({"micro": 8, "optimizer": AdamW()}, id="gradient accumulation"),
        pytest.param({"device": "cuda", "precision": "bf16", "optimizer": AdamW()}, id="fused AdamW", marks=on_gpu),
        pytest.param({"device": "cuda", "micro": None, "cuda_graph": "yes"}, id="CUDA graph", marks=on_gpu),
    ],
)
def test_the_saved_weights_of_300_steps_are_averaged_with_the_announced_decay(
    settings: dict[str, Any], decay: float, history: list[dict[str, torch.Tensor]], tmp_path: Path
):
    lines: list[tuple[str, str]] = []
    config = toy(tmp_path / "run", average=decay, **{**SETTINGS, **settings})
    run = train_run(config, print_line=lambda label, text: lines.append((label, text)))
    assert len(history) == 300
    assert_averaged(run, history, decay)
    assert any(f"EMA (Polyak average) {decay}," in text for label, text in lines if label == "recipe")
    assert RunFolder(run).config().average == decay
    assert any("nearly the mean over all" in text for _, text in lines) == (decay == 0.9999)


@pytest.mark.usefixtures("one_thread")
def test_a_resumed_run_averages_all_of_its_steps(history: list[dict[str, torch.Tensor]], tmp_path: Path):
    config = toy(tmp_path / "run", average=0.99, **SETTINGS)
    complete = train_run(config)
    resumed = train_run(toy(rewind(complete, tmp_path / "resumed"), average=0.99, **SETTINGS))
    assert len(history) == 300 + 100
    assert_averaged(resumed, history[:300], 0.99)
    assert same_tensors(weights(complete), weights(resumed))


@pytest.mark.usefixtures("one_thread")
def test_a_skipped_step_is_not_counted(
    history: list[dict[str, torch.Tensor]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    poison(monkeypatch, 0, [0])  # the very first micro-batch: an average that counted it would keep initial weights
    run = train_run(toy(tmp_path / "run", average=0.99, **{**SETTINGS, "steps": 10, "save_every": 5}))
    records = [read_record(path)["averaged"] for path in complete_checkpoints(run / "checkpoints")]
    assert records == [4, 9]
    assert_averaged(run, history[-9:], 0.99)


@pytest.mark.usefixtures("one_thread")
def test_a_run_of_an_earlier_version_is_resumed_with_the_announced_decay_and_says_so(
    history: list[dict[str, torch.Tensor]], tmp_path: Path
):
    settings = {**SETTINGS, "steps": 20, "save_every": 10}
    older = rewind(train_run(toy(tmp_path / "run", average=0.9, **settings)), tmp_path / "older")
    [latest] = complete_checkpoints(older / "checkpoints")[-1:]
    record = {name: value for name, value in read_record(latest).items() if name not in ("averaged", "crc32")}
    write_record(latest, record)
    lines: list[tuple[str, str]] = []
    resumed = train_run(toy(older, average=0.9, **settings), print_line=lambda *line: lines.append(line))
    assert ("note", "an earlier version averaged the weights of steps 1 to 10") in [
        (label, text.partition(" with")[0]) for label, text in lines
    ]
    assert_averaged(resumed, history[:20], 0.9)  # here, the older average is the same


def test_swapped_in_weights_are_the_averaged_ones_and_go_back_bit_for_bit():
    module, inputs = network(), torch.randn(6, 3)
    average = EMA(module, 0.9)
    train(module, average, 10)
    own = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    expected = torch.func.functional_call(module, average.state(), (inputs,))
    with average.swapped_in():
        assert torch.equal(module(inputs), expected)
    assert all(torch.equal(parameter, own[name]) for name, parameter in module.named_parameters())
    assert not torch.equal(module(inputs), expected)


def test_a_failure_while_swapped_in_brings_the_weights_back():
    module = network()
    average = EMA(module, 0.9)
    train(module, average, 3)
    own = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    with pytest.raises(KeyboardInterrupt), average.swapped_in():
        raise KeyboardInterrupt
    assert all(torch.equal(parameter, own[name]) for name, parameter in module.named_parameters())


def test_validation_does_not_change_training():
    results = []
    for validating in (False, True):
        torch.manual_seed(3)
        module = network()
        average = EMA(module, 0.9)
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        for step in range(6):
            optimizer.zero_grad()
            module(torch.ones(2, 3) * step).square().mean().backward()
            optimizer.step()
            average.update()
            if validating:
                with average.swapped_in(), torch.inference_mode():
                    module(torch.ones(2, 3))
        results.append([*module.parameters(), *average.state().values()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_frozen_parameters_have_no_average():
    module = network()
    module[0].requires_grad_(False)
    assert set(EMA(module, 0.9).state()) == {"1.weight", "1.bias", "2.weight", "2.bias"}


def test_averaging_continues_from_a_loaded_state():
    module = network()
    average, resumed = EMA(module, 0.99), EMA(module, 0.99)
    train(module, average, 5)
    for name, value in resumed.state().items():
        value.copy_(average.state()[name])
    resumed.updates = average.updates
    for one in (average, resumed):
        one.update()
    assert all(torch.equal(value, resumed.state()[name]) for name, value in average.state().items())


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[dist.device_mesh.DeviceMesh]:
    """A process group of one: sharded tensors without a cluster."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_sharded_weights_are_averaged_swapped_in_and_restored(mesh: dist.device_mesh.DeviceMesh):
    torch.manual_seed(1)
    plain = network()
    sharded = network()
    sharded.load_state_dict(plain.state_dict())
    fully_shard(sharded[0], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    averages = []
    for module in (plain, sharded):
        torch.manual_seed(2)
        averages.append(EMA(module, 0.9))
        train(module, averages[-1], 5)
    inputs = torch.randn(6, 3)
    for name, value in averages[1].state().items():
        torch.testing.assert_close(value.full_tensor(), averages[0].state()[name])
    with torch.no_grad():
        own = sharded(inputs)
        with averages[0].swapped_in(), averages[1].swapped_in():
            torch.testing.assert_close(sharded(inputs), plain(inputs))
        assert torch.equal(sharded(inputs), own)
        torch.testing.assert_close(own, plain(inputs))
