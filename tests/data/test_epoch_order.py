"""Orders of an epoch: each image once, the same from any process, and as random as what they replace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.sources.sample_sources import png, write_files
from vitkit.data.epoch_order import (
    MOST_IN_TABLE,
    Permutation,
    ShardOrder,
    computed_order,
    images_by_shard,
    order_of,
    pick_shuffle,
)
from vitkit.data.epoch_sampler import EpochSampler
from vitkit.data.shard_writer import write_shards
from vitkit.data.sources.open import open_data
from vitkit.data.stateless_rng import generator
from vitkit.errors import ConfigError


@given(count=st.integers(1, 3000), seed=st.integers(0, 9))
def test_a_computed_permutation_has_every_number_once_whatever_is_asked_together(count: int, seed: int):
    permutation = Permutation(count, generator(seed))
    every = permutation(np.arange(count))
    assert sorted(every.tolist()) == list(range(count))
    some = generator(seed, 1).permutation(count)[:5]
    assert permutation(some).tolist() == every[some].tolist()


def test_a_computed_permutation_of_a_billion_is_computed_where_it_is_asked():
    permutation = Permutation(10**9 + 7, generator(3))
    positions = np.arange(10**9 - 1000, 10**9 + 7)
    images = permutation(positions)
    assert len(np.unique(images)) == len(images)
    assert 0 <= images.min() < images.max() < 10**9 + 7


def test_a_computed_permutation_looks_random():
    """The statistics of a random permutation are known; five sigmas, so that one test in a million fails by chance."""
    count = 200_003
    images = computed_order(count, 5, 2)(np.arange(count))
    # adjacent images are independent: correlations have a deviation of 1 / √n
    for lag in (1, 2, 447, 448, 449, 1000):  # √n, at which a grid would show
        assert abs(np.corrcoef(images[:-lag], images[lag:])[0, 1]) < 5 / np.sqrt(count)
    assert abs(np.corrcoef(np.arange(count), images)[0, 1]) < 5 / np.sqrt(count)
    # the numbers of position and image, in cells of a table, are uniform
    table = np.histogram2d(np.arange(count), images, bins=40)[0]
    assert scipy.stats.chisquare(table.ravel()).pvalue > 1e-6
    # and so are residues, for images of a class may be spaced evenly
    table = np.histogram2d(np.arange(count) % 40, images % 40, bins=40)[0]
    assert scipy.stats.chisquare(table.ravel()).pvalue > 1e-6
    assert (images == np.arange(count)).sum() <= 8  # fixed points: Poisson of mean 1; more than 8 has p < 2e-6


def test_epochs_and_seeds_have_their_own_computed_orders():
    orders = {tuple(computed_order(500, seed, epoch)(np.arange(500))) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=20)


@settings(max_examples=60)
@given(sizes=SIZES, buffer=st.integers(1, 200), seed=st.integers(0, 3), in_order=st.booleans())
def test_shard_order_has_every_image_once_and_few_shards_at_a_time(
    sizes: list[int], buffer: int, seed: int, in_order: bool
):
    starts = np.append(0, np.cumsum(sizes))
    count = int(starts[-1])
    images = None if in_order else generator(seed, 9).permutation(count)
    order = ShardOrder(starts, images, seed=seed, buffer=buffer)(epoch=1)
    every = order(np.arange(count))
    assert sorted(every.tolist()) == list(range(count))
    places = every if images is None else np.argsort(images)[every]
    shards = np.searchsorted(starts, places, side="right") - 1
    # a shard's images lie within one buffer: at most the buffer and what its last shard has beyond it
    for shard in range(len(sizes)):
        positions = np.flatnonzero(shards == shard)
        assert positions.max() - positions.min() < buffer + max(sizes)
    backwards = [int(order(np.array([position]))[0]) for position in reversed(range(count))]
    assert backwards[::-1] == every.tolist()


def test_a_buffer_of_all_images_mixes_all_shards():
    order = ShardOrder(np.arange(0, 1001, 100), None, seed=0, buffer=1000)(0)
    first = order(np.arange(100)) // 100
    assert len(np.unique(first)) == 10
    alone = ShardOrder(np.arange(0, 1001, 100), None, seed=0, buffer=1)(0)
    assert len(np.unique(alone(np.arange(100)) // 100)) == 1


@pytest.mark.parametrize("shuffle", ["computed", "shards"])
def test_a_sampler_of_any_order_starts_at_any_step(shuffle: str, tmp_path: Path):
    photos = write_files(tmp_path / "photos", {f"{number % 2}/{number}.png": png(number) for number in range(10)})
    write_shards(open_data(photos), tmp_path / "out", megabytes=0)
    split = open_data(tmp_path / "out").splits["all"].select([7, 1, 3, 9, 0, 2])
    sampler = EpochSampler(len(split), 4, order_of(split, shuffle, 4, 3))
    steps = [pair for step in range(9) for pair in sampler.batch_indices(step, 4)]
    for epoch in range(6):
        assert sorted(index for e, index in steps if e == epoch) == list(range(6))
    later = EpochSampler(len(split), 4, order_of(split, shuffle, 4, 3))
    shares = [pair for rank in (0, 1) for pair in later.batch_indices(7, 4, rank, 2)]
    assert shares == steps[28:32]


def test_images_outside_of_tar_files_have_no_shard_order(tmp_path: Path):
    photos = write_files(tmp_path / "photos", {f"{number % 2}/{number}.png": png(number) for number in range(4)})
    with pytest.raises(ConfigError, match="not in tar files"):
        images_by_shard(open_data(photos).splits["all"])


def test_a_resumed_run_that_recorded_no_order_keeps_the_full_one():
    assert pick_shuffle("auto", MOST_IN_TABLE + 1, is_new=True) == "computed"
    assert pick_shuffle("auto", MOST_IN_TABLE + 1, is_new=False) == "full"
    assert pick_shuffle("auto", MOST_IN_TABLE, is_new=True) == "full"
