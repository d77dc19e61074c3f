"""Subsets of the training images: seeded, stratified and nested; what is held out is the same for every subset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.test_partition import data, each, keys
from vitkit.config.resolve import resolve
from vitkit.config.schema import Fit
from vitkit.data.partition import partition
from vitkit.data.sparse_labels import SparseLabels
from vitkit.data.subset import subset_by_share, subset_per_class, subset_size
from vitkit.errors import ConfigError

shares = st.floats(0.001, 1) | st.sampled_from([0.01, 0.1, 0.5, 1.0])


@st.composite
def class_indices(draw: st.DrawFn) -> np.ndarray:
    counts = draw(st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any))
    return np.random.default_rng(draw(st.integers(0, 99))).permutation(np.repeat(np.arange(len(counts)), counts))


@st.composite
def several_labels(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.integers(1, 60)), draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random.random(shape) < random.choice([0, 0.05, 0.3, 0.9], shape[1])


any_labels = class_indices() | several_labels().map(SparseLabels.from_dense)


@given(any_labels, st.tuples(shares, shares), st.integers(0, 5))
def test_the_smaller_share_is_part_of_the_larger(labels, two: tuple[float, float], seed: int):
    smaller, larger = (set(subset_by_share(labels, share, seed).tolist()) for share in sorted(two))
    assert smaller <= larger
    assert set(subset_by_share(labels, 1.0, seed).tolist()) == set(range(len(labels)))


@given(any_labels, st.tuples(st.integers(1, 40), st.integers(1, 40)), st.integers(0, 5))
def test_the_smaller_number_per_class_is_part_of_the_larger(labels, two: tuple[int, int], seed: int):
    smaller, larger = (set(subset_per_class(labels, number, seed).tolist()) for number in sorted(two))
    assert smaller <= larger


@given(class_indices(), shares, st.integers(0, 5))
def test_a_share_takes_each_class_in_proportion_and_one_at_least(labels: np.ndarray, share: float, seed: int):
    chosen = subset_by_share(labels, share, seed)
    assert len(np.unique(chosen)) == len(chosen)
    for count, taken in zip(np.bincount(labels), np.bincount(labels[chosen], minlength=labels.max() + 1), strict=True):
        assert abs(taken - share * count) < 1 or taken == min(count, 1)
        assert taken >= min(count, 1)


@given(class_indices(), st.integers(1, 40), st.integers(0, 5))
def test_a_number_per_class_is_exact_or_all_there_are(labels: np.ndarray, number: int, seed: int):
    chosen = subset_per_class(labels, number, seed)
    taken = np.bincount(labels[chosen], minlength=labels.max() + 1)
    assert taken.tolist() == np.minimum(np.bincount(labels), number).tolist()


@given(several_labels(), shares, st.integers(1, 40), st.integers(0, 5))
def test_several_labels_each_keep_one_image_or_the_number_at_least(
    table: np.ndarray, share: float, number: int, seed: int
):
    labels, counts = SparseLabels.from_dense(table), table.sum(axis=0)
    by_share, by_number = subset_by_share(labels, share, seed), subset_per_class(labels, number, seed)
    assert (table[by_share].sum(axis=0) >= np.minimum(counts, 1)).all()
    assert (table[by_number].sum(axis=0) >= np.minimum(counts, number)).all()
    assert table[by_number].any(axis=1).all()  # images without a label are of no class
    # each image was added for a class that lacked one
    assert len(by_number) <= np.minimum(counts, number).sum()


def test_a_share_of_many_images_with_several_labels_keeps_the_shares_of_the_classes():
    """Rounding is at random, so the numbers are those of the binomial distribution at most."""
    random = np.random.default_rng(0)
    table = random.random((20_000, 30)) < random.random(30) * 0.2
    chosen = subset_by_share(SparseLabels.from_dense(table), 0.1)
    counts = table.sum(axis=0)
    assert abs(len(chosen) - 2000) <= 30
    deviation = np.sqrt(counts * 0.1 * 0.9)
    assert (np.abs(table[chosen].sum(axis=0) - 0.1 * counts) < 4 * deviation).all()


def test_small_classes_of_equal_size_are_rounded_at_random_and_not_all_alike():
    labels = np.repeat(np.arange(3000), 4)
    assert abs(len(subset_by_share(labels, 0.4)) - 0.4 * len(labels)) < 4 * np.sqrt(3000)


def test_another_seed_draws_other_images_and_the_same_seed_the_same():
    labels = np.repeat(np.arange(5), 100)
    first, again, other = (subset_by_share(labels, 0.1, seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert len(first) == len(other) == 50
    assert not np.array_equal(first, other)


@given(
    counts=st.lists(st.integers(4, 30), min_size=2, max_size=3),
    dev=st.sampled_from([0.0, 0.2]),
    two=st.tuples(shares, shares),
    seed=st.integers(0, 3),
)
def test_validation_and_test_images_are_those_without_a_subset(
    counts: list[int], dev: float, two: tuple[float, float], seed: int
):
    source = data(all=np.repeat(np.arange(len(counts)), counts), classes=["cat", "dog", "owl"][: len(counts)])
    options = {"dev": dev, "split_seed": seed}
    whole = partition(source, **options)
    smaller, larger = (partition(source, **options, subset=share) for share in sorted(two))
    for part in (smaller, larger):
        assert (keys(part.validation), keys(part.test)) == (keys(whole.validation), keys(whole.test))
        assert part.held_out == whole.held_out
    assert keys(smaller.train) <= keys(larger.train) <= keys(whole.train)


def test_a_subset_does_not_tear_groups_apart_because_the_split_comes_first():
    source = data(all=each(40))
    images = source.splits["all"]
    grouped = replace(source, splits={"all": replace(images, groups=np.arange(120) // 4)})
    part = partition(grouped, dev=0.2, subset=0.3)
    sides = [
        {int(name.removeprefix("all/").removesuffix(".png")) // 4 for name in keys(side)}
        for side in (part.train, part.validation, part.test)
    ]
    assert all(sides)
    assert sum(map(len, sides)) == len(set.union(*sides))


def test_the_description_and_the_record_say_what_was_drawn():
    part = partition(data(train=each(50), val=each(2), test=each(4)), subset=0.1, split_seed=7)
    assert part.description == (
        "150 train",
        "6 val",
        "12 test",
        "15 of 150 used for training (subset = 0.1)",
    )
    assert part.subset == {
        "share": 0.1,
        "per_class": None,
        "number": None,
        "seed": 7,
        "images": 15,
        "of": 150,
    }
    assert partition(data(train=each(50), test=each(4))).subset is None


def test_a_class_with_fewer_images_is_named_and_gives_all_of_them():
    part = partition(data(train=[0] * 30 + [1] * 3 + [2] * 9, test=each(4)), subset_per_class=9)
    assert part.train.per_class(3).tolist() == [9, 3, 9]
    assert part.notes == ("1 class has fewer than 9 training images, of which all are used: dog (3)",)
    assert part.description[-1] == "21 of 42 used for training (subset_per_class = 9)"


def test_masked_patch_prediction_takes_a_share_of_unlabelled_images():
    source = data(classes=(), all=[-1] * 90)
    assert len(partition(source, objective="masked-patch", subset=0.1).train) == 9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"subset": 0}, "subset = 0: more than 0 and at most 1 is needed"),
        ({"subset": 1.5}, "subset = 1.5: more than 0 and at most 1 is needed"),
        ({"subset": -0.1}, "subset = -0.1: more than 0"),
        ({"subset_per_class": 0}, "subset_per_class = 0: more than 0 is needed"),
        ({"subset": 0.1, "subset_per_class": 5}, "subset = 0.1 and subset_per_class = 5: a run has one subset"),
        (
            {"objective": "masked-patch", "subset_per_class": 5},
            "subset_per_class needs a label for each image",
        ),
    ],
)
def test_nonsense_is_refused_in_words(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as error:
        Fit(**settings)
    assert message in str(error.value)
    with pytest.raises(ConfigError):
        resolve({"data": "fashion", "weights": "none", **settings})


def test_the_recipe_follows_the_size_of_the_subset():
    whole, _, reason = resolve({"data": "fashion", "weights": "ti16"})
    part, _, reason_of_part = resolve({"data": "fashion", "weights": "ti16", "subset_per_class": 10})
    assert subset_size(6000, 10, None, 10) == 100
    assert reason != reason_of_part
    assert (whole.subset_per_class, part.subset_per_class) == (None, 10)
