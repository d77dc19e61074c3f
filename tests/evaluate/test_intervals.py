"""Intervals equal scipy's, and cover the true score where it is known."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitkit.evaluate import intervals, multilabel
from vitkit.evaluate.intervals import bootstrap_deviations, interval_from_deviation, proportion, wilson_interval
from vitkit.evaluate.metrics import balanced_accuracy, count_classes, macro_f1


@given(st.integers(1, 100_000), st.floats(0, 1))
def test_the_interval_of_a_proportion_is_wilsons(images, share):
    correct = round(share * images)
    theirs = stats.binomtest(correct, images).proportion_ci(method="wilson")
    ours = proportion(correct, images)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert 0 <= ours.low <= ours.value <= ours.high <= 1


def draw(random: np.random.Generator, n: int, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw labels and predictions of a known population: probabilities (K, K) of the pairs."""
    pairs = random.choice(probabilities.size, n, p=probabilities.ravel())
    return np.divmod(pairs, len(probabilities))


def population(classes: int, *, rare: bool) -> np.ndarray:
    shares = np.geomspace(1, 0.1 if rare else 1, classes)
    probabilities = (np.full((classes, classes), 0.15 / (classes - 1)) + np.eye(classes) * 0.85) * shares[:, None]
    return probabilities / probabilities.sum()


def test_deviations_equal_scipys_bootstrap():
    labels, predictions = draw(np.random.default_rng(0), 400, population(6, rare=True))
    ours = bootstrap_deviations(labels, predictions, 6, (macro_f1, balanced_accuracy))
    for deviation, score in zip(
        ours, (lambda t, p: sk.f1_score(t, p, average="macro"), sk.balanced_accuracy_score), strict=True
    ):
        theirs = stats.bootstrap(
            (labels, predictions),
            score,
            paired=True,
            vectorized=False,
            n_resamples=300,
            method="basic",
            rng=np.random.default_rng(1),
        )
        assert deviation == pytest.approx(theirs.standard_error, rel=0.2)


def test_the_deviation_of_mean_average_precision_equals_scipys_bootstrap():
    random = np.random.default_rng(0)
    labels = random.random((200, 5)) < 0.3
    scores = random.normal(size=labels.shape) + labels
    rows = np.arange(len(scores))
    theirs = stats.bootstrap(
        (rows,),
        lambda drawn: sk.average_precision_score(labels[drawn], scores[drawn]),
        vectorized=False,
        n_resamples=300,
        method="basic",
        rng=random,
    )
    assert multilabel.bootstrap_deviation(scores, labels) == pytest.approx(theirs.standard_error, rel=0.25)


@pytest.mark.parametrize("rare", [False, True])
def test_nineteen_of_twenty_intervals_contain_the_true_score(rare: bool):
    random, probabilities, trials = np.random.default_rng(0), population(8, rare=rare), 120
    correct, rows, columns = np.diag(probabilities), probabilities.sum(1), probabilities.sum(0)
    true = {macro_f1: (2 * correct / (rows + columns)).mean(), balanced_accuracy: (correct / rows).mean()}
    held = dict.fromkeys(true, 0)
    for _ in range(trials):
        labels, predictions = draw(random, 250, probabilities)
        counts = count_classes(labels, predictions, 8)
        for score, deviation in zip(true, bootstrap_deviations(labels, predictions, 8, tuple(true)), strict=True):
            estimate = interval_from_deviation(score(counts), deviation, counts.images)
            held[score] += estimate.low <= true[score] <= estimate.high
    assert all(0.89 * trials <= times <= trials for times in held.values())


def test_a_perfect_score_on_few_images_has_an_interval():
    labels = np.arange(10) % 5
    counts = count_classes(labels, labels, 5)
    estimate = interval_from_deviation(
        macro_f1(counts), bootstrap_deviations(labels, labels, 5, (macro_f1,))[0], counts.images
    )
    assert estimate == wilson_interval(1.0, 10)
    assert estimate.low < 0.8
    assert estimate.high == 1


def test_the_same_images_have_the_same_interval():
    labels, predictions = draw(np.random.default_rng(0), 100, population(4, rare=False))
    assert bootstrap_deviations(labels, predictions, 4, (macro_f1,)) == bootstrap_deviations(
        labels, predictions, 4, (macro_f1,)
    )


def test_resampling_costs_no_more_for_more_images(monkeypatch: pytest.MonkeyPatch):
    """ImageNet's 50,000 images take 200 passes over the pairs of label and prediction, of which there are fewer."""
    sizes = []
    real = intervals.count_classes
    monkeypatch.setattr(
        intervals, "count_classes", lambda labels, *rest: sizes.append(len(labels)) or real(labels, *rest)
    )
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 50_000)
    predictions = np.where(random.random(50_000) < 0.8, labels, random.integers(0, 10, 50_000))
    bootstrap_deviations(labels, predictions, 10, (macro_f1, balanced_accuracy))
    assert len(sizes) == intervals.RESAMPLES
    assert max(sizes) <= 10 * 10
