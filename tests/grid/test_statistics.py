"""Intervals and verdicts against scipy and against what was planted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from vitkit.grid.statistics import least_squares_slope, mean_interval, t_quantile
from vitkit.grid.verdict import (
    Finding,
    Verdict,
    differences,
    equal,
    greater,
    overall,
    refuted_if_equal,
    reported,
    secondary,
)


@given(freedom=st.integers(1, 200), confidence=st.floats(0.01, 0.999))
def test_the_quantile_is_scipys(freedom, confidence):
    expected = scipy.stats.t.ppf((1 + confidence) / 2, freedom)
    assert t_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20).filter(lambda values: np.std(values) > 1e-3))
def test_the_interval_is_scipys(values):
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, np.mean(values), scipy.stats.sem(values))
    interval = mean_interval(values)
    assert (interval.mean, interval.low, interval.high) == pytest.approx(
        (np.mean(values), low, high), rel=1e-7, abs=1e-7
    )


@given(st.lists(st.tuples(st.integers(-20, 20), st.floats(-100, 100)), min_size=2, max_size=8))
def test_the_slope_is_scipys(points):
    positions, values = zip(*points, strict=True)
    if len(set(positions)) > 1:
        expected = scipy.stats.linregress(positions, values).slope
        assert least_squares_slope(positions, values) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("values", [[], [3.0], [1.0, math.nan]])
def test_too_few_or_unknown_values_decide_nothing(values):
    interval = mean_interval(values)
    assert (interval.low, interval.high) == (-math.inf, math.inf)
    assert greater("", dict(enumerate(values))).verdict is Verdict.UNDECIDED
    assert equal("", dict(enumerate(values))).verdict is Verdict.UNDECIDED


def draws(mean: float, *, seeds: int = 5, spread: float = 1.0) -> list[Finding]:
    generator = np.random.default_rng(0)
    table = generator.normal(mean, spread, (1000, seeds))
    return [greater("planted", dict(enumerate(row))) for row in table]


def test_without_a_difference_at_most_one_in_twenty_is_confirmed():
    verdicts = [finding.verdict for finding in draws(0.0)]
    assert verdicts.count(Verdict.CONFIRMED) <= 50
    assert verdicts.count(Verdict.REFUTED) <= 50
    assert verdicts.count(Verdict.CONFIRMED) > 0  # 25 of 1,000 are expected


def test_a_planted_difference_is_found_with_its_sign():
    assert [finding.verdict for finding in draws(3.0)].count(Verdict.CONFIRMED) > 950
    assert [finding.verdict for finding in draws(-3.0)].count(Verdict.REFUTED) > 950


@given(st.floats(-5, 5), st.floats(0.001, 3))
def test_equal_needs_the_whole_interval_within_the_margin(centre, half):
    values = {0: centre - half, 1: centre + half, 2: centre}
    finding = equal("", values)
    inside = finding.interval.low >= -1 and finding.interval.high <= 1
    assert (finding.verdict is Verdict.EQUAL) == inside
    assert (finding.verdict is Verdict.REFUTED) == (finding.interval.low > 1 or finding.interval.high < -1)


def test_a_claim_with_several_parts_holds_if_all_do_and_falls_with_one():
    holds, same, falls, open_ = (
        greater("", {0: 2.0, 1: 2.1}),
        equal("", {0: 0.1, 1: 0.1}),
        greater("", {0: -2.0, 1: -2.1}),
        greater("", {0: 1.0}),
    )
    assert overall([holds, same]) is Verdict.CONFIRMED
    assert overall([same, same]) is Verdict.EQUAL
    assert overall([holds, open_]) is Verdict.UNDECIDED
    assert overall([holds, open_, falls]) is Verdict.REFUTED
    assert overall([]) is Verdict.UNDECIDED
    assert overall([holds, reported("", {0: 1.0})]) is Verdict.CONFIRMED


def test_a_secondary_finding_has_a_verdict_and_no_part_in_that_of_the_claim():
    holds, falls = greater("", {0: 2.0, 1: 2.1}), greater("", {0: -2.0, 1: -2.1})
    assert secondary(falls).verdict is Verdict.REFUTED
    assert overall([holds, secondary(falls), secondary(greater("", {0: 1.0}))]) is Verdict.CONFIRMED
    assert overall([secondary(holds)]) is Verdict.UNDECIDED


def test_a_question_is_answered_with_no_if_every_difference_is_small():
    """Against scipy: the answer is no where every interval of scipy's lies within a point and none excludes zero."""
    generator = np.random.default_rng(0)
    answers = []
    for spread in np.repeat([0.05, 0.3, 3.0], 100):
        rows = generator.normal(0, spread, (4, 5))
        cells = [equal("", dict(enumerate(row))) for row in rows]
        answer = refuted_if_equal(greater("", dict(enumerate(rows[0]))), cells)
        bounds = [scipy.stats.t.interval(0.95, 4, row.mean(), scipy.stats.sem(row)) for row in rows]
        small = all(low >= -1 and high <= 1 for low, high in bounds)
        low, high = bounds[0]
        expected = Verdict.CONFIRMED if low > 0 else Verdict.REFUTED if high < 0 or small else Verdict.UNDECIDED
        assert answer.verdict is expected
        answers.append(expected)
    assert set(answers) == {Verdict.CONFIRMED, Verdict.REFUTED, Verdict.UNDECIDED}


def test_differences_are_taken_within_seeds_that_both_have():
    assert differences({0: 3.0, 1: 4.0, 2: 9.0}, {2: 1.0, 0: 1.0}) == {0: 2.0, 2: 8.0}
