"""The results of a comparison: scores of arms over seeds, differences from the baseline, effects of axes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitkit.grid.arm import Arm, Trial
from vitkit.grid.grid_file import Grid
from vitkit.grid.outcome import Outcome
from vitkit.grid.statistics import Interval, mean_interval
from vitkit.grid.verdict import MARGIN, differences


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """One row of the table: an arm's score and its difference from the baseline, over seeds."""

    arm: Arm
    scores: Mapping[int, float]
    diverged: int
    mean: Interval
    difference: Interval | None  # None: the baseline itself
    seconds: float  # of a trial, on average
    overhead: float  # share of it outside of steps

    @property
    def word(self) -> str:
        """The difference in a word: higher, lower, equal or undecided."""
        return "baseline" if self.difference is None else describe_difference(self.difference)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of one value of an axis against the axis's first value, on average over the other axes."""

    axis: str
    value: str
    against: str
    difference: Interval

    @property
    def word(self) -> str:
        return describe_difference(self.difference)


def describe_difference(interval: Interval, margin: float = MARGIN) -> str:
    if interval.low > 0:
        return "higher"
    if interval.high < 0:
        return "lower"
    return "equal" if -margin <= interval.low and interval.high <= margin else "undecided"


def scores_of(arm: Arm, seeds: Sequence[int], outcomes: Mapping[Trial, Outcome]) -> dict[int, float]:
    """Return the arm's score by seed; a seed that diverged, or has not run, has none."""
    scores = {seed: outcomes[Trial(arm, seed)].score for seed in seeds if Trial(arm, seed) in outcomes}
    return {seed: score for seed, score in scores.items() if score is not None}


def compare(grid: Grid, outcomes: Mapping[Trial, Outcome]) -> list[ArmResult]:
    """Return a row for each arm, in their order."""
    baseline = scores_of(grid.baseline, grid.seeds, outcomes)
    rows = []
    for arm in grid.arms:
        scores = scores_of(arm, grid.seeds, outcomes)
        ran = [outcomes[trial] for seed in grid.seeds if (trial := Trial(arm, seed)) in outcomes]
        paired = [*differences(scores, baseline).values()]
        rows.append(
            ArmResult(
                arm=arm,
                scores=scores,
                diverged=sum(outcome.status == "diverged" for outcome in ran),
                mean=mean_interval([*scores.values()]),
                difference=None if arm == grid.baseline else mean_interval(paired),
                seconds=sum(outcome.seconds for outcome in ran) / max(len(ran), 1),
                overhead=sum(outcome.overhead for outcome in ran) / max(len(ran), 1),
            )
        )
    return rows


def effects(grid: Grid, outcomes: Mapping[Trial, Outcome]) -> list[Effect]:
    """Return the main effects of a factorial comparison: seed by seed, averaged over all other axes."""
    if len(grid.axes) < 2:
        return []  # the table says it already
    found = []
    for index, (axis, values) in enumerate(grid.axes.items()):
        others = [names for position, names in enumerate(grid.axes.values()) if position != index]
        for value in values[1:]:
            by_seed: dict[int, list[float]] = {}
            for rest in itertools.product(*others):
                pair = [grid.arm_at(*rest[:index], choice, *rest[index:]) for choice in (value, values[0])]
                first, second = (scores_of(arm, grid.seeds, outcomes) for arm in pair)
                for seed, difference in differences(first, second).items():
                    by_seed.setdefault(seed, []).append(difference)
            cells = len([*itertools.product(*others)])  # a seed counts where none of its runs diverged
            complete = [sum(one) / cells for one in by_seed.values() if len(one) == cells]
            found.append(Effect(axis=axis, value=value, against=values[0], difference=mean_interval(complete)))
    return found
