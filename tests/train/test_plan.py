"""The plan of a run: arithmetic that can be done by hand, and errors that say what would work."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vitkit.config.schema import Fit, Schedule
from vitkit.data.epoch_sampler import EpochSampler
from vitkit.errors import ConfigError
from vitkit.train.plan import Plan, batch_per_process, count_steps, divisors, largest_divisor


def planned(images: int, **settings: Any) -> Fit:
    return count_steps(Fit(**settings), images)


def test_500_steps_of_table_4_are_70_epochs_of_pets():
    plan = Plan(steps=500, images=3680, batch=512, micro=256, processes=1)
    assert plan.epochs == pytest.approx(69.565, abs=1e-3)
    assert plan.accumulate == 2
    assert plan.describe() == "500 steps, batch 512 = 2 x 256 accumulated, 69.6 epochs of 3,680 images"


def test_imagenets_300_epochs_at_batch_4096_are_93_836_steps():
    assert planned(1_281_167, epochs=300, batch=4096).steps == 93_836  # 93,835.4 rounded up


@given(images=st.integers(1, 2000), batch=st.integers(1, 300), epochs=st.integers(1, 9))
def test_whole_epochs_show_every_image_that_often_and_none_an_epoch_more(images: int, batch: int, epochs: int):
    assume(images * epochs >= batch)
    steps = planned(images, epochs=epochs, batch=batch).steps
    assert steps is not None
    sampler = EpochSampler(images)
    shown = [sampler.batch_indices(step, batch) for step in range(steps)]
    for epoch in range(epochs):
        assert sorted(index for rows in shown for number, index in rows if number == epoch) == [*range(images)]
    assert any(number < epochs for number, _ in shown[-1])  # the last step is needed
    description = Plan(steps=steps, images=images, batch=batch, micro=batch, processes=1).describe()
    more = sum(number >= epochs for number, _ in shown[-1])
    if batch <= images:
        noun = "epoch" if epochs == 1 else "epochs"
        assert description.endswith(f", {epochs} {noun} of {images:,} images" + f" and {more} more" * (more > 0))


def test_epochs_count_as_the_decimal_number_that_was_written():
    assert 1.1 * 100 > 110  # in binary
    assert planned(100, epochs=1.1, batch=1).steps == 110
    assert planned(1000, epochs=0.3, batch=100).steps == 3


def test_a_run_that_was_started_with_fewer_steps_keeps_them():
    """A run folder of an earlier version holds 23 steps, for which 3 epochs of 1,020 images were rounded down."""
    assert planned(1020, epochs=3, batch=128).steps == 24
    assert planned(1020, steps=23, batch=128).steps == 23


@pytest.mark.parametrize(
    ("micro", "processes", "accumulate", "description"),
    [
        (512, 1, 1, "batch 512, "),
        (64, 8, 1, "batch 512 = 8 processes x 64, "),
        (16, 8, 4, "batch 512 = 8 processes x 4 x 16 accumulated, "),
        (1, 1, 512, "batch 512 = 512 x 1 accumulated, "),
    ],
)
def test_the_batch_is_divided_by_processes_and_gradient_accumulation(
    micro: int, processes: int, accumulate: int, description: str
):
    plan = Plan(steps=10, images=512, batch=512, micro=micro, processes=processes)
    assert plan.accumulate == accumulate
    assert description in plan.describe()
    assert "10 epochs of 512 images" in plan.describe()


@given(images=st.integers(1, 10**6), batch=st.integers(1, 5000), epochs=st.floats(0.01, 400))
def test_epochs_become_whole_steps_or_an_error_whose_advice_works(images: int, batch: int, epochs: float):
    try:
        config = planned(images, epochs=epochs, batch=batch)
    except ConfigError as error:
        assert epochs * images < batch
        advice = str(error)
        (more,) = re.findall(r"--epochs (\d+)", advice)
        assert (planned(images, epochs=int(more), batch=batch).steps or 0) >= 10
        for smaller in re.findall(r"--batch (\d+)", advice):
            assert planned(images, epochs=epochs, batch=int(smaller)).steps
    else:
        assert config.epochs is None
        assert config.steps is not None
        assert config.steps * batch >= epochs * images * (1 - 1e-9)
        assert (config.steps - 1) * batch < epochs * images * (1 + 1e-9)


def test_one_step_and_one_epoch_are_singular():
    assert Plan(steps=1, images=8, batch=8, micro=8, processes=1).describe() == ("1 step, batch 8, 1 epoch of 8 images")


def test_a_run_shorter_than_one_step_is_an_error_with_advice():
    with pytest.raises(ConfigError) as raised:
        planned(24, epochs=1, batch=128)
    assert "epochs = 1 over 24 images is less than one step of batch 128" in str(raised.value)
    assert "--batch 6, or --epochs 54" in str(raised.value)


def test_a_run_without_a_length_is_an_error():
    with pytest.raises(ConfigError, match="--steps or --epochs"):
        planned(24)


def test_a_number_of_steps_does_not_depend_on_the_number_of_images():
    assert planned(3, steps=7, batch=512).steps == 7


@pytest.mark.parametrize(
    ("warmup", "steps", "becomes"), [(0, 1, 0), (0.1, 1000, 100), (0.1, 3, 0), (0.5, 3, 2), (1, 2, 1), (99, 100, 99)]
)
def test_warm_up_is_a_number_of_steps_or_a_share_of_the_run(warmup: float, steps: int, becomes: int):
    assert planned(100, steps=steps, schedule=Schedule(warmup=warmup)).schedule.warmup == becomes


@pytest.mark.parametrize(("warmup", "steps"), [(5, 5), (10_000, 500), (1, 1), (0.9, 2)])
def test_a_warm_up_as_long_as_the_run_is_an_error(warmup: float, steps: int):
    with pytest.raises(ConfigError) as raised:
        planned(100, steps=steps, schedule=Schedule(warmup=warmup))
    assert f"is as long as the run, which has {steps:,}" in str(raised.value)
    assert "--set schedule.warmup=0.1" in str(raised.value)


def test_counting_steps_twice_changes_nothing():
    config = planned(1000, epochs=3, batch=10, schedule=Schedule(warmup=0.1))
    assert count_steps(config, 1000) == config


@given(batch=st.integers(1, 10_000), processes=st.integers(1, 64))
def test_a_batch_that_processes_cannot_divide_is_an_error_that_names_one_they_can(batch: int, processes: int):
    assume(batch % processes)
    with pytest.raises(ConfigError) as raised:
        batch_per_process(Fit(batch=batch), processes)
    (better,) = re.findall(r"--batch (\d+)", str(raised.value))
    assert batch_per_process(Fit(batch=int(better)), processes) * processes == int(better) >= batch


def test_the_batch_is_divided_evenly():
    assert batch_per_process(Fit(batch=4096), 8) == 512


@given(number=st.integers(1, 3000), limit=st.integers(-3, 4000))
def test_the_largest_divisor_is_that_of_trying_all_numbers(number: int, limit: int):
    expected = [one for one in range(1, number + 1) if number % one == 0]
    assert sorted(divisors(number)) == expected
    assert largest_divisor(number, limit) == max(one for one in expected if one <= max(limit, 1))
