"""Scores of pictures with any number of labels: average precision, a class at a time.

By hand: torchmetrics counts classes without a positive as zeros in its mean, and takes float32 sigmoids, in which high
logits are equal although they order the pictures; and an interval needs precision under weights, which it lacks.

Shapes: n pictures, K classes, R resamples, s steps of a curve, one for each score that a positive has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.order import generator
from vitkit.evaluate.intervals import RESAMPLING
from vitkit.evaluate.metrics import Counts, Floats

RESAMPLES = 100  # gives a deviation to 7 %; each is another pass over all pictures of all classes

Table = NDArray[Any]  # (n, K)


def average_precision(scores: Table, labels: Table) -> Floats:
    """The mean, over a class's positives, of the precision down to each: (K,), NaN without a positive."""
    return np.array([_Curve(scores[:, k], labels[:, k] > 0).area() for k in range(scores.shape[1])])


def mean_average_precision(per_class: Floats) -> float:
    """Over the classes that have a positive."""
    return float(np.nanmean(per_class))


def spread(scores: Table, labels: Table) -> float:
    """Standard deviation of the mean average precision over resamples of the pictures, drawn with replacement."""
    random = generator(0, RESAMPLING)
    drawn = np.array(
        [np.bincount(random.integers(0, len(scores), len(scores)), minlength=len(scores)) for _ in range(RESAMPLES)],
        dtype=np.uint8,
    )  # (R, n); no picture is drawn 256 times
    areas, classes = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    for k in np.flatnonzero(labels.any(axis=0)):
        curve = _Curve(scores[:, k], labels[:, k] > 0)
        found = np.array([curve.area(weights) for weights in drawn])
        areas += np.nan_to_num(found)
        classes += ~np.isnan(found)  # a resample may hold no positive of this class
    return float(np.std(areas[classes > 0] / classes[classes > 0]))


class _Curve:
    """Precision over recall; equal scores are one step, as in scikit-learn."""

    def __init__(self, scores: NDArray[Any], positive: NDArray[np.bool_]) -> None:
        steps = np.unique(scores[positive])
        # down to how many steps each picture counts; no sorting of all pictures
        self.reach = np.searchsorted(steps, scores, side="right")
        self.positive = np.flatnonzero(positive)
        self.steps = len(steps)

    def area(self, weights: NDArray[Any] | None = None) -> float:
        """A picture with the weight 3 counts as three of its kind."""
        pictures = self._at_steps(self.reach, weights)  # (s,)
        positives = self._at_steps(self.reach[self.positive], None if weights is None else weights[self.positive])
        found, among = (np.cumsum(counts[::-1])[::-1] for counts in (positives, pictures))
        total = positives.sum()
        return float((positives * found / np.maximum(among, 1)).sum() / total) if total else float("nan")

    def _at_steps(self, reach: NDArray[np.int64], weights: NDArray[Any] | None) -> NDArray[Any]:
        return np.bincount(reach, weights, self.steps + 1)[1:]


def count(answered: Table, labels: Table) -> Counts:
    """Labels that are there, that were answered, and both."""
    there = labels > 0
    return Counts(*(table.sum(axis=0) for table in (there, answered, there & answered)))
