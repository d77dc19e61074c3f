"""EMA of the weights: against a plain loop, torch's AveragedModel, and with FSDP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel

from vitkit.train.ema import EMA


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def train(module: nn.Module, average: EMA, steps: int) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        module(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
        average.update(step)


@given(decay=st.floats(0.1, 0.99999), steps=st.integers(1, 40), seed=st.integers(0, 1000))
def test_averages_are_those_of_a_plain_loop(decay: float, steps: int, seed: int):
    values = np.random.default_rng(seed).normal(size=(steps + 1, 4))
    module = nn.Linear(4, 1, bias=False).double()
    module.weight.data[:] = torch.from_numpy(values[0])
    average, expected = EMA(module, decay), values[0]
    for step in range(steps):
        module.weight.data[:] = torch.from_numpy(values[step + 1])
        average.update(step)
        kept = min(decay, (1 + step) / (10 + step))
        expected = kept * expected + (1 - kept) * values[step + 1]
    np.testing.assert_allclose(average.state()["weight"][0], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.9999])
def test_averages_are_torchs_with_the_same_decay(decay: float):
    module = network()

    def blend(average: torch.Tensor, parameter: torch.Tensor, count: int | torch.Tensor) -> torch.Tensor:
        kept = min(decay, int(count) / (9 + int(count)))
        return kept * average + (1 - kept) * parameter

    average, theirs = EMA(module, decay), AveragedModel(module, avg_fn=blend)
    theirs.update_parameters(module)  # torch's first call copies
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(20):
        module(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
        average.update(step)
        theirs.update_parameters(module)
    state = average.state()
    for name, value in theirs.module.named_parameters():
        torch.testing.assert_close(state[name], value.detach())


def test_after_many_steps_the_decay_is_the_configured_one():
    module = nn.Linear(1, 1, bias=False)
    average = EMA(module, 0.9)
    average.state()["weight"].zero_()
    module.weight.data.fill_(1.0)
    average.update(10_000)
    assert average.state()["weight"].item() == pytest.approx(0.1)


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
            average.update(step)
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
    for one in (average, resumed):
        one.update(5)
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
