"""Metrics equal scikit-learn's, also for missing classes, ties and few images."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from torchmetrics.functional.classification import multiclass_calibration_error

from vitkit.evaluate.metrics import (
    balanced_accuracy,
    calibration_error,
    confusion_matrix,
    count_classes,
    macro_f1,
    reliability_bins,
    score_images,
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw logits (n, K) and labels (n,): few images, so that some classes have none, coarse logits that tie."""
    n, classes = draw(st.integers(1, 40)), draw(st.integers(1, 8))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = random.normal(size=(n, classes)) * draw(st.sampled_from([0.0, 1.0, 5.0, 60.0]))
    if draw(st.booleans()):
        logits = logits.round()
    present = random.choice(classes, draw(st.integers(1, classes)), replace=False)
    return torch.from_numpy(logits).float(), torch.from_numpy(random.choice(present, n))


@given(cases())
def test_the_prediction_is_the_argmax_and_top_1_is_its_accuracy(case):
    logits, labels = case
    scores = score_images(logits, labels)
    assert scores.predictions.tolist() == logits.argmax(1).tolist()
    assert scores.correct(1) == sk.accuracy_score(labels, logits.argmax(1), normalize=False)


@given(cases(), st.integers(1, 6))
def test_top_k_equals_scikit_learn_with_ties_going_to_the_lower_class(case, k):
    """scikit-learn lets ties go to the higher class: with the classes counted backwards, that is our rule."""
    logits, labels = case
    classes = logits.shape[1]
    assume(k < classes > 2)  # elsewhere scikit-learn wants other shapes
    theirs = sk.top_k_accuracy_score(classes - 1 - labels, logits.flip(1), k=k, labels=range(classes), normalize=False)
    assert score_images(logits, labels).correct(k) == theirs


def test_the_lower_class_wins_a_tie():
    scores = score_images(torch.zeros(3, 3), torch.arange(3))
    assert scores.rank.tolist() == [0, 1, 2]


def test_a_nan_logit_is_never_correct():
    scores = score_images(torch.full((2, 7), float("nan")), torch.tensor([0, 6]))
    assert scores.correct(5) == 0


@given(cases())
def test_loss_and_probabilities_are_torchs(case):
    logits, labels = case
    scores = score_images(logits, labels)
    assert scores.loss.mean() == pytest.approx(float(torch.nn.functional.cross_entropy(logits.double(), labels)))
    probabilities = logits.double().softmax(1)
    assert scores.confidence == pytest.approx(probabilities.max(1).values.numpy())
    assert scores.label_probability == pytest.approx(probabilities[torch.arange(len(labels)), labels].numpy())


def test_chunks_of_images_are_scored_like_all_at_once():
    logits, labels = torch.randn(9000, 3), torch.randint(3, (9000,))
    complete, tail = score_images(logits, labels), score_images(logits[8000:], labels[8000:])
    assert complete.rank[8000:].tolist() == tail.rank.tolist()
    assert complete.loss[8000:].tolist() == tail.loss.tolist()


@pytest.mark.filterwarnings("ignore:A single label was found")
@given(cases())
def test_confusions_recall_precision_and_f1_equal_scikit_learn(case):
    logits, labels = case
    classes, predictions = logits.shape[1], logits.argmax(1)
    counts = count_classes(labels.numpy(), predictions.numpy(), classes)
    assert (
        confusion_matrix(labels.numpy(), predictions.numpy(), classes)
        == sk.confusion_matrix(labels, predictions, labels=range(classes))
    ).all()
    theirs = sk.precision_recall_fscore_support(labels, predictions, labels=range(classes), zero_division=np.nan)
    for ours, expected in zip((counts.precision, counts.recall, counts.f1, counts.images), theirs, strict=True):
        np.testing.assert_allclose(ours, expected)


@given(cases())
def test_averages_over_classes_equal_scikit_learn(case):
    logits, labels = case
    predictions = logits.argmax(1)
    counts = count_classes(labels.numpy(), predictions.numpy(), logits.shape[1])
    assert macro_f1(counts) == pytest.approx(sk.f1_score(labels, predictions, average="macro", zero_division=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about predictions that are no image's class
        assert balanced_accuracy(counts) == pytest.approx(sk.balanced_accuracy_score(labels, predictions))


@given(cases())
def test_the_calibration_error_equals_torchmetrics_below_full_confidence(case):
    logits, labels = case
    probabilities = logits.double().softmax(1)
    assume(logits.shape[1] > 1 and probabilities.max() < 1)  # torchmetrics gives 1 a bin of its own
    assume((probabilities.argmax(1) == logits.argmax(1)).all())  # no tie that only the softmax has
    edges = probabilities.amax(1) * 15
    assume(((edges - edges.round()).abs() > 1e-3).all())  # theirs are float32, which may be on an edge's other side
    scores = score_images(logits, labels)
    theirs = multiclass_calibration_error(probabilities, labels, num_classes=logits.shape[1], n_bins=15)
    assert calibration_error(reliability_bins(scores.confidence, scores.rank == 0)) == pytest.approx(
        float(theirs), abs=8 * torch.finfo(torch.float32).eps
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_bins_equal_scipys_and_a_confidence_of_one_belongs_to_the_last(confidences):
    confidence = np.array(confidences)
    bins = reliability_bins(confidence, confidence > 0.5)
    means, borders, _ = stats.binned_statistic(confidence, confidence, bins=15, range=(0, 1))
    counts = stats.binned_statistic(confidence, confidence, "count", bins=15, range=(0, 1))[0]
    assert [one.images for one in bins] == counts.tolist()
    assert [one.low for one in bins] == pytest.approx(borders[:-1].tolist())
    assert [one.confidence for one in bins] == pytest.approx(np.nan_to_num(means).tolist())


def test_a_model_that_is_certain_is_calibrated_if_it_is_correct_and_not_if_it_is_wrong():
    certain = np.ones(4)
    assert calibration_error(reliability_bins(certain, certain > 0)) == 0
    assert calibration_error(reliability_bins(certain, certain < 0)) == 1
    assert calibration_error(reliability_bins(np.array([1, 0.95]), np.array([True, False]))) == pytest.approx(0.475)
