"""Average precision equals scikit-learn's, also for ties and classes without positives."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given
from hypothesis import strategies as st

from vitkit.evaluate import multilabel


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    n, classes = draw(st.integers(1, 40)), draw(st.integers(1, 6))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = random.normal(size=(n, classes)).astype(np.float32) * draw(st.sampled_from([0.0, 1.0, 50.0]))
    if draw(st.booleans()):
        scores = scores.round()
    return scores, random.random((n, classes)) < random.choice([0, 0.1, 0.5, 1], classes)


@given(cases())
def test_average_precision_equals_scikit_learn(case):
    scores, labels = case
    ours = multilabel.average_precision(scores, labels)
    for k, value in enumerate(ours):
        if labels[:, k].any():
            assert value == pytest.approx(sk.average_precision_score(labels[:, k], scores[:, k]))
        else:
            assert np.isnan(value)


@given(cases())
def test_the_mean_is_over_classes_that_have_a_positive(case):
    scores, labels = case
    present = labels.any(axis=0)
    if present.any():
        ours = multilabel.mean_average_precision(multilabel.average_precision(scores, labels))
        assert ours == pytest.approx(sk.average_precision_score(labels[:, present], scores[:, present]))


def test_high_logits_rank_images_although_their_sigmoids_are_equal():
    scores, labels = np.array([[30.0], [25], [20]], np.float32), np.array([[True], [False], [False]])
    assert multilabel.average_precision(scores, labels).tolist() == [1]


@given(cases())
def test_counts_of_labels_equal_scikit_learn(case):
    scores, labels = case
    counts = multilabel.count_labels(scores > 0, labels)
    # scikit-learn takes a single column for single-label data
    padded = [np.column_stack([table, np.zeros(len(table), bool)]) for table in (labels, scores > 0)]
    precision, recall, f1, images = (
        column[:-1] for column in sk.precision_recall_fscore_support(*padded, zero_division=np.nan)
    )
    np.testing.assert_allclose(counts.precision, precision)
    np.testing.assert_allclose(counts.recall, recall)
    np.testing.assert_allclose(counts.f1, f1)
    assert counts.images.tolist() == images.tolist()


@given(cases())
def test_the_deviation_is_finite_if_there_is_a_positive(case):
    scores, labels = case
    if labels.any():
        assert np.isfinite(multilabel.bootstrap_deviation(scores, labels))
