"""Verdicts: what paired differences over seeds say about a claim.

A difference is taken within a seed, so that what the seed does to both arms cancels. The rules are fixed before a run:
a claim is confirmed if the interval excludes zero with the claim's sign, equal if the whole interval lies within the
margin, refuted if it excludes both, and undecided otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from vitkit.grid.statistics import Interval, mean_interval

MARGIN = 1.0  # points within which two scores count as equal


class Verdict(StrEnum):
    CONFIRMED = "confirmed"
    EQUAL = "equal"
    REFUTED = "refuted"
    UNDECIDED = "undecided"

    @property
    def holds(self) -> bool:
        return self in (Verdict.CONFIRMED, Verdict.EQUAL)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One comparison: a number for each seed, its interval, and the verdict, which is None where nothing is claimed."""

    question: str
    by_seed: Mapping[int, float]
    interval: Interval
    verdict: Verdict | None
    expected: str  # such as "above 0", "within ±1.0"
    unit: str = "points"
    paper: str = ""  # the paper's own number
    decides: bool = True  # whether the verdict over all findings depends on this one


def greater(
    question: str, by_seed: Mapping[int, float], *, than: float = 0.0, unit: str = "points", paper: str = ""
) -> Finding:
    """Judge the claim that the number lies above `than`."""

    def verdict(interval: Interval) -> Verdict:
        if interval.low > than:
            return Verdict.CONFIRMED
        return Verdict.REFUTED if interval.high < than else Verdict.UNDECIDED

    return _finding(question, by_seed, verdict, f"above {than:g}", unit, paper)


def equal(
    question: str, by_seed: Mapping[int, float], *, margin: float = MARGIN, unit: str = "points", paper: str = ""
) -> Finding:
    """Judge the claim that the number is zero, up to the margin."""

    def verdict(interval: Interval) -> Verdict:
        if -margin <= interval.low and interval.high <= margin:
            return Verdict.EQUAL
        return Verdict.REFUTED if interval.low > margin or interval.high < -margin else Verdict.UNDECIDED

    return _finding(question, by_seed, verdict, f"within ±{margin:g}", unit, paper)


def reported(question: str, by_seed: Mapping[int, float], *, unit: str = "points", paper: str = "") -> Finding:
    """Report a number about which nothing is claimed."""
    return _finding(question, by_seed, lambda interval: None, "", unit, paper)


def secondary(finding: Finding) -> Finding:
    """Return a finding that keeps its own verdict, and has no part in the verdict over all findings."""
    return replace(finding, decides=False)


def refuted_if_equal(finding: Finding, cells: Iterable[Finding]) -> Finding:
    """Return a finding that is refuted, where it would be undecided, if all cells are equal.

    A question about an effect has an answer, too, if every difference is shown to be small.
    """
    all_equal = all(cell.verdict is Verdict.EQUAL for cell in cells)
    refuted = finding.verdict is Verdict.UNDECIDED and all_equal
    return replace(
        finding,
        verdict=Verdict.REFUTED if refuted else finding.verdict,
        expected=f"{finding.expected}; refuted if all are equal",
    )


def _finding(
    question: str,
    by_seed: Mapping[int, float],
    verdict: Callable[[Interval], Verdict | None],
    expected: str,
    unit: str,
    paper: str,
) -> Finding:
    interval = mean_interval([*by_seed.values()])
    return Finding(
        question=question,
        by_seed=by_seed,
        interval=interval,
        verdict=verdict(interval),
        expected=expected,
        unit=unit,
        paper=paper,
    )


def overall(findings: Iterable[Finding]) -> Verdict:
    """Return the verdict of a claim with several parts: it holds if all do, and falls with one."""
    verdicts = [finding.verdict for finding in findings if finding.verdict is not None and finding.decides]
    if Verdict.REFUTED in verdicts:
        return Verdict.REFUTED
    if not verdicts or Verdict.UNDECIDED in verdicts:
        return Verdict.UNDECIDED
    return Verdict.EQUAL if set(verdicts) == {Verdict.EQUAL} else Verdict.CONFIRMED


def differences(first: Mapping[int, float], second: Mapping[int, float]) -> dict[int, float]:
    """Return first minus second for each seed that both have: an arm that diverged has no score for its seed."""
    return {seed: first[seed] - second[seed] for seed in first if seed in second}
