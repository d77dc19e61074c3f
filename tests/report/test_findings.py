"""Numbers in words, and what is read off an evaluation."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from tests.report.made import PLAIN, make_evaluation, make_split
from vitkit.pages.numbers import compute, duration, percent, plural, products, short
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


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (percent(0.90912), "90.9 %"),
        (percent(1.0), "100 %"),
        (percent(None), "–"),
        (percent(float("nan")), "–"),
        (duration(3.21), "3.2 s"),
        (duration(59.6), "1 min 0 s"),
        (duration(123.4), "2 min 3 s"),
        (duration(3600 * 5 + 61), "5 h 1 min"),
        (duration(3600 * 50), "2 d 2 h"),
        (short(5_526_346), "5.5M"),
        (short(27_978), "28.0k"),
        (short(12), "12"),
        (compute(2.3e20), "230 exaFLOPs"),
        (compute(1.4e17), "0.14 exaFLOPs"),
        (compute(3.8e16), "38 petaFLOPs"),
        (compute(4.1e12), "4.1 teraFLOPs"),
        (products(1.258e9), "1.26 GMACs"),
        (products(1.57e6), "1.57 MMACs"),
        (plural(1, "picture"), "1 picture"),
        (plural(3669, "picture"), "3,669 pictures"),
        (plural(37, "class"), "37 classes"),
    ],
)
def test_numbers_read_well(said: str, expected: str) -> None:
    assert said == expected
