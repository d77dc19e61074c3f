"""How far a score could be off, had other pictures of the same kind been taken: 95 % intervals.

Shares (top-1, top-5, ReaL) have Wilson's interval. An average over classes is no share of pictures: its spread comes
from resampling the pictures, and its interval is Wilson's for as many pictures as would give a share that spread.
Against the bootstrap's percentiles, in simulations with 10 to 100 classes of which some were rare, this covered the
true macro-F1 in 75 to 97 % of the cases instead of 56 to 95 %, balanced accuracy in 91 to 97 instead of 91 to 96; it
always holds the score itself, and is not a single point when every picture was answered rightly.

Shapes: n pictures, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.order import generator
from vitkit.evaluate.evaluation import Estimate
from vitkit.evaluate.metrics import Counts, Ints, count

Z = 1.959963984540054  # 95 % of a normal distribution lie this many deviations around its mean
RESAMPLES = 200  # gives a deviation to 5 %
RESAMPLING = 0xB007  # sets these draws apart from others of the same seed


def share(right: int, pictures: int) -> Estimate:
    return wilson(right / pictures, pictures)


def wilson(value: float, pictures: float) -> Estimate:
    """Wilson's score interval; `pictures` need not be whole."""
    shrink = 1 + Z * Z / pictures
    centre = (value + Z * Z / (2 * pictures)) / shrink
    half = Z / shrink * np.sqrt(value * (1 - value) / pictures + (Z / (2 * pictures)) ** 2)
    return Estimate(
        value=value, low=float(min(max(centre - half, 0), value)), high=float(max(min(centre + half, 1), value))
    )


def from_spread(value: float, spread: float, pictures: NDArray[Any]) -> Estimate:
    """An average over classes; `pictures` of each are asked only if no resample differed, at a score of 0 or 1.

    Then it is the interval of as many pictures as shares of the same size in every class would be worth together.
    """
    present = pictures[pictures > 0]
    worth = value * (1 - value) / spread**2 if spread > 1e-9 else len(present) ** 2 / (1 / present).sum()
    return wilson(value, float(worth))


def spreads(truth: Ints, answer: Ints, classes: int, statistics: Sequence[Callable[[Counts], float]]) -> list[float]:
    """Standard deviations of statistics over resamples of the pictures, drawn with replacement.

    Pictures with the same truth and the same answer are alike, so that only how many there are of each kind is drawn:
    the time does not grow with n once all kinds are there.
    """
    kinds, pictures = np.unique(truth * classes + answer, return_counts=True)
    truths, answers = np.divmod(kinds, classes)
    chances, total = pictures / pictures.sum(), int(pictures.sum())
    random = generator(0, RESAMPLING)
    values = []
    for _ in range(RESAMPLES):
        drawn = count(truths, answers, classes, random.multinomial(total, chances))
        values.append([statistic(drawn) for statistic in statistics])
    return [float(spread) for spread in np.std(values, axis=0)]
