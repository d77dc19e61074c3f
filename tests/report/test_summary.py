"""Summaries of an evaluation."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from tests.report.run_folders import PLAIN, make_evaluation, make_split
from vitkit.report.summary import ConfusedPair, most_confused, overconfidence


def test_confusions_are_pairs_counted_both_ways() -> None:
    truths = np.repeat([0, 1, 2], [10, 8, 6])
    predictions = truths.copy()
    predictions[:2], predictions[10:15], predictions[-1] = 1, 0, 1  # 2 birds as cats, 5 cats as birds, 1 dog as a cat
    counts = tuple(map(tuple, confusion_matrix(truths, predictions).tolist()))
    evaluation = make_evaluation(PLAIN, make_split(PLAIN), confusion=counts)
    assert most_confused(evaluation, 10) == [
        ConfusedPair("cat", "bird", 5, 8, 2, 10),
        ConfusedPair("dog", "cat", 1, 6, 0, 8),
    ]
    assert most_confused(evaluation, 1) == most_confused(evaluation, 10)[:1]
    assert most_confused(make_evaluation(PLAIN, make_split(PLAIN), confusion=()), 10) == []


def test_overconfidence_is_weighted_by_images() -> None:
    evaluation = make_evaluation(PLAIN, make_split(PLAIN))
    assert overconfidence(evaluation) == pytest.approx((10 * (0.4 - 0.5) + 30 * (0.9 - 0.7)) / 40)
