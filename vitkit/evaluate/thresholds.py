"""Thresholds of a multi-label model: the probability from which each class is predicted, chosen on validation data.

With calibrated probabilities, the best F1 of a class is reached at a threshold of half that F1 (Lipton et al. 2014):
0.5 is too high for all but perfect classes.

Shapes: n images, K classes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.sparse_labels import SparseLabels
from vitkit.text import counted

MIN_POSITIVES = 10  # validation images with a label, from which its class gets a threshold of its own
DEFAULT = 0.5


@dataclass(frozen=True)
class ChosenThresholds:
    values: tuple[float, ...]  # (K,)
    own: int  # classes with a threshold of their own
    shared: float  # the threshold of the others, over which all of them together have the best F1
    images: int  # validation images

    def __str__(self) -> str:
        low, high = min(self.values), max(self.values)
        span = f"{low:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"
        if self.own == len(self.values):
            kind = "one for each class"
        elif self.own:
            few = len(self.values) - self.own
            classes = counted(few, "class", "classes")
            kind = f"{self.shared:.2f} for {classes} with fewer than {MIN_POSITIVES} images to choose by"
        else:
            kind = f"the same for all, as each has fewer than {MIN_POSITIVES} images to choose by"
        return f"{span} ({kind}), for the best F1 on {self.images:,} validation images"


def choose_thresholds(probabilities: NDArray[Any], labels: SparseLabels) -> ChosenThresholds:
    """Choose the threshold of each class (K,) that gives the best F1 on these (n, K) probabilities and labels.

    Classes with few positives share the threshold of the best F1 over all classes together; without enough positives in
    all, it is 0.5. A label is predicted from its threshold on: probability >= threshold.
    """
    images, positives = labels.by_class(), labels.counts()
    shared = DEFAULT
    if positives.sum() >= MIN_POSITIVES:
        shared = best_threshold(probabilities.ravel(), labels.rows() * labels.classes + labels.numbers)
    values = [
        best_threshold(probabilities[:, k], images[k]) if positives[k] >= MIN_POSITIVES else shared
        for k in range(labels.classes)
    ]
    return ChosenThresholds(tuple(values), int((positives >= MIN_POSITIVES).sum()), shared, len(labels))


def best_threshold(probabilities: NDArray[Any], positive: NDArray[Any]) -> float:
    """Return a threshold with the best F1: half-way between the last probability above it and the next one below.

    `positive` are the indices of the positive ones, at least one. Only their probabilities can be the last above a best
    threshold: without a negative below all positives, the F1 is higher. Of equally good ones, the nearest to 0.5.
    """
    ordered = np.sort(probabilities)
    steps, counts = np.unique(probabilities[positive], return_counts=True)
    first = np.searchsorted(ordered, steps)  # how many are below each step
    correct = np.cumsum(counts[::-1])[::-1]
    f1 = 2 * correct / (len(ordered) - first + len(positive))
    below = np.where(first > 0, ordered[np.maximum(first - 1, 0)], 0.0)
    middles = (steps.astype(np.float64) + below.astype(np.float64)) / 2
    best = np.flatnonzero(f1 >= f1.max() - 1e-12)
    return float(middles[best[np.abs(middles[best] - DEFAULT).argmin()]])
