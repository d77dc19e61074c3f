"""What is read off an evaluation."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from tests.report.made import PLAIN, make_evaluation, make_split
from vitkit.report.findings import Confusion, confusions, overconfidence


def test_confusions_are_pairs_counted_both_ways() -> None:
    truths = np.repeat([0, 1, 2], [10, 8, 6])
    answers = truths.copy()
    answers[:2], answers[10:15], answers[-1] = 1, 0, 1  # 2 birds as cats, 5 cats as birds, 1 dog as a cat
    counts = tuple(map(tuple, confusion_matrix(truths, answers).tolist()))
    found = make_evaluation(PLAIN, make_split(PLAIN), confusion=counts)
    assert confusions(found, 10) == [Confusion("cat", "bird", 5, 8, 2, 10), Confusion("dog", "cat", 1, 6, 0, 8)]
    assert confusions(found, 1) == confusions(found, 10)[:1]
    assert confusions(make_evaluation(PLAIN, make_split(PLAIN), confusion=()), 10) == []


def test_overconfidence_is_weighted_by_pictures() -> None:
    found = make_evaluation(PLAIN, make_split(PLAIN))
    assert overconfidence(found) == pytest.approx((10 * (0.4 - 0.5) + 30 * (0.9 - 0.7)) / 40)
