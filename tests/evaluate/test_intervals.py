"""Intervals against scipy's, and against the truth where it is known."""

from __future__ import annotations

import time

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitkit.evaluate import multilabel
from vitkit.evaluate.intervals import from_spread, share, spreads, wilson
from vitkit.evaluate.metrics import balanced_accuracy, count, macro_f1


@given(st.integers(1, 100_000), st.floats(0, 1))
def test_the_interval_of_a_share_is_wilsons(pictures, part):
    right = round(part * pictures)
    theirs = stats.binomtest(right, pictures).proportion_ci(method="wilson")
    ours = share(right, pictures)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert 0 <= ours.low <= ours.value <= ours.high <= 1


def answers(random: np.random.Generator, n: int, chances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of a known population: chances (K, K) of truth and answer."""
    kinds = random.choice(chances.size, n, p=chances.ravel())
    return np.divmod(kinds, len(chances))


def population(classes: int, *, rare: bool) -> np.ndarray:
    shares = np.geomspace(1, 0.1 if rare else 1, classes)
    chances = (np.full((classes, classes), 0.15 / (classes - 1)) + np.eye(classes) * 0.85) * shares[:, None]
    return chances / chances.sum()


def test_spreads_equal_scipys_bootstrap():
    truth, answer = answers(np.random.default_rng(0), 400, population(6, rare=True))
    ours = spreads(truth, answer, 6, (macro_f1, balanced_accuracy))
    for spread, score in zip(
        ours, (lambda t, a: sk.f1_score(t, a, average="macro"), sk.balanced_accuracy_score), strict=True
    ):
        theirs = stats.bootstrap(
            (truth, answer),
            score,
            paired=True,
            vectorized=False,
            n_resamples=300,
            method="basic",
            rng=np.random.default_rng(1),
        )
        assert spread == pytest.approx(theirs.standard_error, rel=0.2)


def test_the_spread_of_mean_average_precision_equals_scipys_bootstrap():
    random = np.random.default_rng(0)
    labels = random.random((200, 5)) < 0.3
    scores = random.normal(size=labels.shape) + labels
    rows = np.arange(len(scores))
    theirs = stats.bootstrap(
        (rows,),
        lambda some: sk.average_precision_score(labels[some], scores[some]),
        vectorized=False,
        n_resamples=300,
        method="basic",
        rng=random,
    )
    assert multilabel.spread(scores, labels) == pytest.approx(theirs.standard_error, rel=0.25)


@pytest.mark.parametrize("rare", [False, True])
def test_nineteen_of_twenty_intervals_hold_the_true_score(rare: bool):
    random, chances, trials = np.random.default_rng(0), population(8, rare=rare), 120
    right, rows, columns = np.diag(chances), chances.sum(1), chances.sum(0)
    true = {macro_f1: (2 * right / (rows + columns)).mean(), balanced_accuracy: (right / rows).mean()}
    held = dict.fromkeys(true, 0)
    for _ in range(trials):
        truth, answer = answers(random, 250, chances)
        counts = count(truth, answer, 8)
        for score, spread in zip(true, spreads(truth, answer, 8, tuple(true)), strict=True):
            found = from_spread(score(counts), spread, counts.pictures)
            held[score] += found.low <= true[score] <= found.high
    assert all(0.89 * trials <= times <= trials for times in held.values())


def test_a_perfect_score_on_few_pictures_is_not_certain():
    everything = np.arange(10) % 5
    counts = count(everything, everything, 5)
    found = from_spread(macro_f1(counts), spreads(everything, everything, 5, (macro_f1,))[0], counts.pictures)
    assert found == wilson(1.0, 10)
    assert found.low < 0.8
    assert found.high == 1


def test_the_same_pictures_have_the_same_interval_again():
    truth, answer = answers(np.random.default_rng(0), 100, population(4, rare=False))
    assert spreads(truth, answer, 4, (macro_f1,)) == spreads(truth, answer, 4, (macro_f1,))


@pytest.mark.slow
def test_imagenet_takes_a_second():
    random = np.random.default_rng(0)
    truth = random.integers(0, 1000, 50_000)
    answer = np.where(random.random(50_000) < 0.8, truth, random.integers(0, 1000, 50_000))
    started = time.perf_counter()
    spreads(truth, answer, 1000, (macro_f1, balanced_accuracy))
    assert time.perf_counter() - started < 1
