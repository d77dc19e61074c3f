"""The plan of steps: arithmetic that can be done by hand, and refusals that say what would work."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vitkit.config.schema import Fit, Schedule
from vitkit.errors import ConfigError
from vitkit.train.plan import Plan, check_shares, count_steps, divisors, largest_divisor


def planned(pictures: int, **settings: Any) -> Fit:
    return count_steps(Fit(**settings), pictures)


def test_table_4s_500_steps_are_70_epochs_of_pets():
    plan = Plan(steps=500, pictures=3680, batch=512, micro=256, processes=1)
    assert plan.epochs == pytest.approx(69.565, abs=1e-3)
    assert plan.accumulate == 2
    assert plan.describe() == "500 steps, batch 512 = 256 x 2 accumulated, 69.6 epochs of 3,680 pictures"


def test_imagenets_300_epochs_at_batch_4096_are_93_835_steps():
    assert planned(1_281_167, epochs=300, batch=4096).steps == 93_835


@pytest.mark.parametrize(
    ("micro", "processes", "accumulate", "words"),
    [
        (512, 1, 1, "batch 512, "),
        (64, 8, 1, "batch 512 = 64 x 8 processes, "),
        (16, 8, 4, "batch 512 = 16 x 8 processes x 4 accumulated, "),
        (1, 1, 512, "batch 512 = 1 x 512 accumulated, "),
    ],
)
def test_a_batch_is_shared_by_processes_and_passes(micro: int, processes: int, accumulate: int, words: str):
    plan = Plan(steps=10, pictures=512, batch=512, micro=micro, processes=processes)
    assert plan.accumulate == accumulate
    assert words in plan.describe()
    assert "10 epochs of 512 pictures" in plan.describe()


@given(pictures=st.integers(1, 10**6), batch=st.integers(1, 5000), epochs=st.floats(0.01, 400))
def test_epochs_become_whole_steps_or_a_refusal_whose_advice_works(pictures: int, batch: int, epochs: float):
    try:
        config = planned(pictures, epochs=epochs, batch=batch)
    except ConfigError as error:
        assert epochs * pictures < batch
        advice = str(error)
        (more,) = re.findall(r"--epochs (\d+)", advice)
        assert (planned(pictures, epochs=int(more), batch=batch).steps or 0) >= 10
        for smaller in re.findall(r"--batch (\d+)", advice):
            assert planned(pictures, epochs=epochs, batch=int(smaller)).steps
    else:
        assert config.epochs is None
        assert config.steps is not None
        assert config.steps * batch <= epochs * pictures * (1 + 1e-9)
        assert (config.steps + 1) * batch > epochs * pictures * (1 - 1e-9)


def test_one_is_not_a_plural():
    assert Plan(steps=1, pictures=8, batch=8, micro=8, processes=1).describe() == (
        "1 step, batch 8, 1 epoch of 8 pictures"
    )


def test_a_run_of_no_step_is_refused_with_advice():
    with pytest.raises(ConfigError) as told:
        planned(24, epochs=1, batch=128)
    assert "epochs = 1 over 24 pictures is no step of batch 128" in str(told.value)
    assert "--batch 6, or --epochs 54" in str(told.value)


def test_a_run_without_a_length_is_refused():
    with pytest.raises(ConfigError, match="--steps or --epochs"):
        planned(24)


def test_steps_count_whatever_the_number_of_pictures():
    assert planned(3, steps=7, batch=512).steps == 7


@pytest.mark.parametrize(
    ("warmup", "steps", "becomes"), [(0, 1, 0), (0.1, 1000, 100), (0.1, 3, 0), (0.5, 3, 2), (1, 2, 1), (99, 100, 99)]
)
def test_warm_up_is_a_number_of_steps_or_a_share_of_the_run(warmup: float, steps: int, becomes: int):
    assert planned(100, steps=steps, schedule=Schedule(warmup=warmup)).schedule.warmup == becomes


@pytest.mark.parametrize(("warmup", "steps"), [(5, 5), (10_000, 500), (1, 1), (0.9, 2)])
def test_a_warm_up_that_is_the_whole_run_is_refused(warmup: float, steps: int):
    with pytest.raises(ConfigError) as told:
        planned(100, steps=steps, schedule=Schedule(warmup=warmup))
    assert f"is all of the run's {steps:,}" in str(told.value)
    assert "--set schedule.warmup=0.1" in str(told.value)


def test_a_plan_that_was_made_stays_as_it_is():
    config = planned(1000, epochs=3, batch=10, schedule=Schedule(warmup=0.1))
    assert count_steps(config, 1000) == config


@given(batch=st.integers(1, 10_000), processes=st.integers(1, 64))
def test_a_batch_that_processes_cannot_share_is_refused_with_one_that_they_can(batch: int, processes: int):
    assume(batch % processes)
    with pytest.raises(ConfigError) as told:
        check_shares(Fit(batch=batch), processes)
    (better,) = re.findall(r"--batch (\d+)", str(told.value))
    assert check_shares(Fit(batch=int(better)), processes) * processes == int(better) >= batch


def test_a_batch_is_shared_evenly():
    assert check_shares(Fit(batch=4096), 8) == 512


@given(number=st.integers(1, 3000), most=st.integers(-3, 4000))
def test_the_largest_divisor_is_found_as_by_trying_all(number: int, most: int):
    tried = [part for part in range(1, number + 1) if number % part == 0]
    assert sorted(divisors(number)) == tried
    assert largest_divisor(number, most) == max(part for part in tried if part <= max(most, 1))
