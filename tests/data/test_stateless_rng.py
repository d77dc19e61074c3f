from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitkit.data.stateless_rng import splitmix64, uniform
from vitkit.errors import ConfigError

words = st.integers(-(2**63), 2**64 - 1)
indices = st.lists(st.integers(0, 2**62), min_size=1, max_size=20)


@pytest.mark.parametrize(("seed", "epoch", "stream"), [(0, 0, "flip"), (0, 1, "flip"), (1, 0, "crop"), (2**63, 9, "")])
def test_numbers_are_uniform_over_images_and_over_positions(seed: int, epoch: int, stream: str):
    drawn = uniform(seed, epoch, torch.arange(20_000), stream, 5)
    assert drawn.dtype == np.float32
    assert 0 <= drawn.min() <= drawn.max() < 1
    for column in drawn.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-4
    counts = np.bincount((drawn.ravel() * 64).astype(int), minlength=64)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_every_one_of_the_24_bits_is_a_fair_coin():
    integers = (uniform(3, 4, torch.arange(20_000), "bits", 1)[:, 0].astype(float) * 2**24).astype(int)
    ones = [int(((integers >> bit) & 1).sum()) for bit in range(24)]
    assert min(stats.binomtest(count, 20_000).pvalue for count in ones) > 1e-4


@pytest.mark.parametrize(
    "other",
    [
        uniform(7, 1, torch.arange(20_000), "flip", 1),  # the next epoch
        uniform(8, 0, torch.arange(20_000), "flip", 1),  # the next seed
        uniform(7, 0, torch.arange(20_000), "crop", 1),  # another stream
        uniform(7, 0, torch.arange(1, 20_001), "flip", 1),  # the next image
        uniform(7, 0, torch.arange(20_000), "flip", 2)[:, 1:],  # the next number
        uniform(0, 7, torch.arange(20_000), "flip", 1),  # seed and epoch exchanged
    ],
)
def test_neighbouring_keys_give_independent_numbers(other: np.ndarray):
    base = uniform(7, 0, torch.arange(20_000), "flip", 1)
    pairs = np.histogram2d(base[:, 0], other[:, 0], bins=8, range=[(0, 1)] * 2)[0]
    assert stats.chisquare(pairs.ravel()).pvalue > 1e-4


@given(seed=words, epoch=st.integers(0, 10**6), images=indices, count=st.integers(1, 9), more=st.integers(0, 5))
def test_an_image_gets_the_same_numbers_in_any_batch(seed: int, epoch: int, images: list[int], count: int, more: int):
    batch = uniform(seed, epoch, torch.tensor(images), "x", count)
    for row, image in enumerate(images):
        alone = uniform(seed, epoch, torch.tensor([image]), "x", count + more)
        assert np.array_equal(alone[0, :count], batch[row])


def test_a_batch_across_epochs_draws_for_each_image_in_its_own_epoch():
    drawn = uniform(5, torch.tensor([3, 3, 4]), torch.tensor([8, 9, 0]), "x", 4)
    assert np.array_equal(drawn[:2], uniform(5, 3, torch.tensor([8, 9]), "x", 4))
    assert np.array_equal(drawn[2:], uniform(5, 4, torch.tensor([0]), "x", 4))


def test_the_mixing_function_is_splitmix64():
    """The oracle is the definition by Steele, Lea and Flood in Python integers."""

    def splitmix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    for z in (0, 1, 0x9E3779B97F4A7C15, 2**63, 2**64 - 1):
        assert int(splitmix64(np.array([z], np.uint64))[0]) == splitmix(z)
    assert splitmix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF  # the published first output for seed 0


def test_the_numbers_of_a_seed_never_change():
    """A resumed run on another machine or a later version draws what it would have drawn: frozen on 2026-11-15."""
    assert uniform(42, 7, [0, 123_456_789], "flip", 2).tolist() == [
        [0.3190001845359802, 0.6009976267814636],
        [0.4200431704521179, 0.9181197881698608],
    ]


def test_indices_must_be_integers():
    with pytest.raises(ConfigError, match="one integer index per image"):
        uniform(0, 0, torch.rand(3), "x", 1)
