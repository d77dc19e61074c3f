"""Average precision equals scikit-learn's, also for ties and classes without positives."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from vitkit.data.sources.dataset import DataError, PackedStrings
from vitkit.data.sparse_labels import SparseLabels
from vitkit.evaluate import multilabel
from vitkit.evaluate.scores import MISTAKES, ScoredImages, score_multilabel


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
    ours = multilabel.average_precision(scores, SparseLabels.from_dense(labels))
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
        ours = multilabel.mean_average_precision(multilabel.average_precision(scores, SparseLabels.from_dense(labels)))
        assert ours == pytest.approx(sk.average_precision_score(labels[:, present], scores[:, present]))


def test_high_logits_rank_images_although_their_sigmoids_are_equal():
    scores, labels = np.array([[30.0], [25], [20]], np.float32), np.array([[True], [False], [False]])
    assert multilabel.average_precision(scores, SparseLabels.from_dense(labels)).tolist() == [1]


@given(cases(), st.booleans())
def test_scores_of_sparse_labels_equal_dense_ones_of_torch_and_scikit_learn(case, own_thresholds: bool):
    logits, labels = case
    n, classes = labels.shape
    names = tuple(f"class {k}" for k in range(classes))
    images = ScoredImages(names, PackedStrings(map(str, range(n))), np.arange(n))
    thresholds = tuple(np.linspace(0.2, 0.9, classes)) if own_thresholds else None
    sparse, known = SparseLabels.from_dense(labels), np.ones(classes, bool)
    if not labels.any():
        with pytest.raises(DataError, match="nothing to score"):
            score_multilabel(images, torch.from_numpy(logits), sparse, known, thresholds)
        return
    scores = score_multilabel(images, torch.from_numpy(logits), sparse, known, thresholds)
    dense = F.binary_cross_entropy_with_logits(torch.from_numpy(logits).double(), torch.from_numpy(labels).double())
    assert scores["loss"] == pytest.approx(dense.item(), rel=1e-12)
    present = labels.any(axis=0)
    assert scores["mean_average_precision"].value == pytest.approx(
        sk.average_precision_score(labels[:, present], logits[:, present])
    )
    predicted = logits > 0
    if thresholds is not None:
        predicted = (torch.from_numpy(logits).sigmoid() >= torch.tensor(thresholds)).numpy()
    # scikit-learn takes a single column for single-label data
    padded = [np.column_stack([table, np.zeros(n, bool)]) for table in (labels, predicted)]
    columns = sk.precision_recall_fscore_support(*padded, zero_division=np.nan)
    for k, row in enumerate(scores["per_class"]):
        ours = [np.nan if value is None else value for value in (row.precision, row.recall, row.f1)]
        np.testing.assert_allclose([*ours, row.images], [column[k] for column in columns])
    wrong = {str(row) for row in np.flatnonzero((labels != predicted).any(axis=1))}
    assert {mistake.key for mistake in scores["mistakes"]} <= wrong
    assert len(scores["mistakes"]) == min(len(wrong), MISTAKES)
    for mistake in scores["mistakes"]:
        truth, answer = (
            ", ".join(name for name, has in zip(names, table[mistake.index], strict=True) if has) or "nothing"
            for table in (labels, predicted)
        )
        assert (mistake.truth, mistake.answer) == (truth, answer)


@given(cases())
def test_the_deviation_is_finite_if_there_is_a_positive(case):
    scores, labels = case
    if labels.any():
        assert np.isfinite(multilabel.bootstrap_deviation(scores, SparseLabels.from_dense(labels)))
