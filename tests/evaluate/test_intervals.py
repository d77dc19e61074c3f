"""Intervals equal scipy's, and cover the true score where it is known."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitkit.data.sparse_labels import SparseLabels
from vitkit.evaluate import intervals, multilabel
from vitkit.evaluate.intervals import (
    balanced_accuracy_interval,
    bootstrap_deviations,
    interval_from_deviation,
    proportion,
    wilson_interval,
)
from vitkit.evaluate.metrics import ClassCounts, balanced_accuracy, count_classes, macro_f1


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
    ours = multilabel.bootstrap_deviation(scores, SparseLabels.from_dense(labels))
    assert ours == pytest.approx(theirs.standard_error, rel=0.25)


@pytest.mark.parametrize("rare", [False, True])
def test_nineteen_of_twenty_intervals_contain_the_true_macro_f1(rare: bool):
    random, probabilities, trials = np.random.default_rng(0), population(8, rare=rare), 120
    correct, rows, columns = np.diag(probabilities), probabilities.sum(1), probabilities.sum(0)
    true, held = (2 * correct / (rows + columns)).mean(), 0
    for _ in range(trials):
        labels, predictions = draw(random, 250, probabilities)
        counts = count_classes(labels, predictions, 8)
        (deviation,) = bootstrap_deviations(labels, predictions, 8, (macro_f1,))
        estimate = interval_from_deviation(macro_f1(counts), deviation, counts.images)
        held += estimate.low <= true <= estimate.high
    assert 0.89 * trials <= held <= trials


def recalled(images: np.ndarray, correct: np.ndarray) -> ClassCounts:
    return ClassCounts(images, images, correct)


@given(st.integers(1, 300), st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_where_classes_are_equal_balanced_accuracy_has_the_interval_of_top_1(images: int, shares: list[float]):
    correct = np.round(np.array(shares) * images).astype(int)
    balanced = balanced_accuracy_interval(recalled(np.full(len(shares), images), correct))
    top1 = stats.binomtest(int(correct.sum()), images * len(shares)).proportion_ci(method="wilson")
    assert balanced.value == pytest.approx(correct.sum() / (images * len(shares)), abs=1e-12)
    assert (balanced.low, balanced.high) == pytest.approx((top1.low, top1.high), abs=1e-9)


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0, 1)), min_size=1, max_size=30), st.integers(0, 3))
def test_the_interval_of_balanced_accuracy_contains_it_and_ignores_empty_classes(rows, empty: int):
    images = np.array([number for number, _ in rows] + [0] * empty)
    correct = np.array([round(number * share) for number, share in rows] + [0] * empty)
    estimate = balanced_accuracy_interval(recalled(images, correct))
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert estimate.value == pytest.approx(balanced_accuracy(recalled(images, correct)))
    assert estimate == balanced_accuracy_interval(recalled(images[: len(rows)], correct[: len(rows)]))
    assert estimate.low < estimate.high


SHAPES = {  # the true recall of the first, most frequent class and of the last, rarest one
    "equal": (0.9, 0.9),
    "rare and weak": (0.98, 0.5),
    "rare and strong": (0.5, 0.98),
}


@pytest.mark.parametrize("recalls", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("classes", "each", "ratio"), [(2, 100, 1), (10, 10, 1), (10, 10, 10), (37, 30, 10)])
def test_nineteen_of_twenty_intervals_contain_the_true_balanced_accuracy(
    recalls: tuple[float, float], classes: int, each: int, ratio: int
):
    shares = np.geomspace(ratio, 1, classes)
    true, random, trials, held = np.linspace(*recalls, classes), np.random.default_rng(0), 1000, 0
    for _ in range(trials):
        images = random.multinomial(classes * each, shares / shares.sum())
        estimate = balanced_accuracy_interval(recalled(images, random.binomial(images, true)))
        held += estimate.low <= true.mean() <= estimate.high
    # 0.95, less three deviations of a share of 1,000 trials; more is conservative
    assert held / trials >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / trials)


def test_the_interval_of_balanced_accuracy_is_the_percentiles_of_many_resamples_of_equal_recalls():
    """Many images and equal recalls: neither the classes of the images nor the bound widen it over the bootstrap's."""
    images = np.array([4000, 2000, 1000, 500])
    correct = images * 9 // 10
    estimate = balanced_accuracy_interval(recalled(images, correct))
    draws = np.random.default_rng(0).binomial(images, 0.9, (20_000, 4)) / images
    low, high = np.percentile(draws.mean(1), [2.5, 97.5])
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.1 * (high - low))


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
