"""Learning rate schedules: against closed forms, and torch's schedulers where they coincide."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, MultiStepLR

from vitkit.config.schema import Schedule
from vitkit.train.schedule import lr_factor

kinds = st.sampled_from(["cosine", "linear", "rsqrt", "constant"])
counts = st.integers(1, 300)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Schedule, int]:
    """Draw a schedule and a run long enough for its warm-up and cooldown."""
    warmup, cooldown, rest = draw(st.integers(0, 50)), draw(st.integers(0, 50)), draw(counts)
    schedule = Schedule(kind=draw(kinds), warmup=warmup, timescale=draw(counts), cooldown=cooldown)
    return schedule, warmup + rest + cooldown


def factors(schedule: Schedule, steps: int) -> list[float]:
    return [lr_factor(schedule, step, steps) for step in range(steps)]


def rates(scheduler: type[LRScheduler], steps: int, **options: Any) -> list[float]:
    """Return the learning rates of torch's scheduler with a peak of 1."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule, values = scheduler(optimizer, **options), []
    for _ in range(steps):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return values


@given(steps=counts)
def test_cosine_is_torchs_annealing(steps: int):
    assert factors(Schedule(), steps) == pytest.approx(rates(CosineAnnealingLR, steps, T_max=steps), abs=1e-9)


@given(steps=counts)
def test_linear_is_torchs_linear_decay(steps: int):
    theirs = rates(LinearLR, steps, start_factor=1.0, end_factor=0.0, total_iters=steps)
    assert factors(Schedule(kind="linear"), steps) == pytest.approx(theirs, abs=1e-9)


@given(steps=counts, drops=st.lists(st.floats(0.01, 0.99), max_size=4))
def test_step_is_torchs_multi_step_decay(steps: int, drops: list[float]):
    milestones = [round(share * steps) for share in drops]
    ours = factors(Schedule(kind="step", drops=tuple(drops)), steps)
    theirs = rates(MultiStepLR, steps, milestones=[step for step in milestones if step], gamma=0.1)
    below = 0.1 ** milestones.count(0)  # torch has no drop before the first step
    assert ours == pytest.approx([below * rate for rate in theirs], abs=1e-9)


@given(warmup=st.integers(2, 100), kind=kinds)
def test_the_warm_up_is_torchs_linear_rise(warmup: int, kind: str):
    theirs = rates(LinearLR, warmup, start_factor=1 / warmup, end_factor=1.0, total_iters=warmup - 1)
    assert factors(Schedule(kind=kind, warmup=warmup), 1000)[:warmup] == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("cosine", [1 / 4, 2 / 4, 3 / 4, 1, 1, (2 + math.sqrt(2)) / 4, 1 / 2, (2 - math.sqrt(2)) / 4]),
        ("linear", [1 / 4, 2 / 4, 3 / 4, 1, 1, 3 / 4, 2 / 4, 1 / 4]),
        ("constant", [1 / 4, 2 / 4, 3 / 4, 1, 1, 1, 1, 1]),
        ("rsqrt", [1 / 4, 2 / 4, 3 / 4, 1, 1, math.sqrt(2 / 3), math.sqrt(1 / 2), math.sqrt(2 / 5)]),
    ],
)
def test_eight_steps_by_hand(kind: str, expected: list[float]):
    assert factors(Schedule(kind=kind, warmup=4, timescale=2), 8) == pytest.approx(expected)


@given(timescale=st.integers(1, 10_000), warmup=st.integers(0, 1000))
def test_rsqrt_has_fallen_to_one_over_root_two_after_its_timescale(timescale: int, warmup: int):
    schedule = Schedule(kind="rsqrt", warmup=warmup, timescale=timescale)
    assert lr_factor(schedule, warmup + timescale, 10**6) == pytest.approx(1 / math.sqrt(2))
    assert lr_factor(schedule, warmup + 3 * timescale, 10**6) == pytest.approx(1 / 2)


def test_the_cooldown_falls_linearly_to_zero():
    plain, cooled = (Schedule(kind="rsqrt", timescale=50, cooldown=cooldown) for cooldown in (0, 10))
    ratios = [cold / warm for cold, warm in zip(factors(cooled, 100), factors(plain, 100), strict=True)]
    assert ratios == pytest.approx([1.0] * 90 + [(100 - step) / 10 for step in range(90, 100)])
    assert lr_factor(cooled, 100, 100) == 0


@given(run=runs())
def test_factors_rise_to_one_and_then_only_fall(run: tuple[Schedule, int]):
    schedule, steps = run
    values = factors(schedule, steps)
    assert all(0 < value <= 1 for value in values)
    assert values[schedule.warmup] == 1
    rise, decay = values[: schedule.warmup], values[schedule.warmup :]
    assert rise == sorted(rise)
    assert decay == sorted(decay, reverse=True)


@given(run=runs(), beyond=st.integers(0, 1000))
def test_the_factor_does_not_rise_after_the_run(run: tuple[Schedule, int], beyond: int):
    schedule, steps = run
    assert 0 <= lr_factor(schedule, steps + beyond, steps) <= lr_factor(schedule, steps - 1, steps)


@given(kind=kinds, warmup=st.integers(1, 100), steps=st.integers(1, 100))
def test_a_run_shorter_than_its_warm_up_only_rises(kind: str, warmup: int, steps: int):
    steps = min(steps, warmup)
    expected = [(step + 1) / warmup for step in range(steps)]
    assert factors(Schedule(kind=kind, warmup=warmup), steps) == pytest.approx(expected)
