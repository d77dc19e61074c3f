"""Metrics of multi-label predictions: the average precision of each class.

Written by hand: torchmetrics counts classes without a positive as zeros in its mean, and takes float32 sigmoids, in
which high logits become equal although they rank the images; an interval also needs weighted precision, which it lacks.

Shapes: n images, K classes, R resamples, s steps of a curve, one for each score that a positive has.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.sparse_labels import SparseLabels
from vitkit.data.stateless_rng import generator
from vitkit.evaluate.intervals import RESAMPLING
from vitkit.evaluate.metrics import Floats

RESAMPLES = 100  # give a deviation to 7 %; each is another pass over all images of all classes

Table = NDArray[Any]  # (n, K)


def average_precision(scores: Table, labels: SparseLabels) -> Floats:
    """Return the average precision of each class (K,): the mean precision at its positives, NaN without a positive."""
    images = labels.by_class()
    return np.array([_PrecisionRecallCurve(scores[:, k], images[k]).area() for k in range(scores.shape[1])])


def mean_average_precision(per_class: Floats) -> float:
    """Return the mean over the classes that have a positive."""
    return float(np.nanmean(per_class))


def bootstrap_deviation(scores: Table, labels: SparseLabels) -> float:
    """Return the standard deviation of the mean average precision over resamples of the images, with replacement."""
    random = generator(0, RESAMPLING)
    drawn = np.array(
        [np.bincount(random.integers(0, len(scores), len(scores)), minlength=len(scores)) for _ in range(RESAMPLES)],
        dtype=np.uint8,
    )  # (R, n); no image is drawn 256 times
    areas, classes = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    images = labels.by_class()
    for k in np.flatnonzero(images.has_any()):
        curve = _PrecisionRecallCurve(scores[:, k], images[k])
        resampled = np.array([curve.area(weights) for weights in drawn])
        areas += np.nan_to_num(resampled)
        classes += ~np.isnan(resampled)  # a resample may hold no positive of this class
    return float(np.std(areas[classes > 0] / classes[classes > 0]))


class _PrecisionRecallCurve:
    """A precision-recall curve; equal scores are one step, as in scikit-learn."""

    def __init__(self, scores: NDArray[Any], positive: NDArray[Any]) -> None:
        """Take the scores of all images and the indices of the positive ones."""
        steps = np.unique(scores[positive])
        # the number of steps that each image counts in, without sorting all images
        self.steps_of_image = np.searchsorted(steps, scores, side="right")
        self.positive = positive
        self.steps = len(steps)

    def area(self, weights: NDArray[Any] | None = None) -> float:
        """Return the area under the curve; an image with the weight 3 counts as three."""
        images = self._at_steps(self.steps_of_image, weights)  # (s,)
        positives = self._at_steps(
            self.steps_of_image[self.positive], None if weights is None else weights[self.positive]
        )
        true_positives, predicted = (np.cumsum(counts[::-1])[::-1] for counts in (positives, images))
        total = positives.sum()
        return float((positives * true_positives / np.maximum(predicted, 1)).sum() / total) if total else float("nan")

    def _at_steps(self, steps: NDArray[np.int64], weights: NDArray[Any] | None) -> NDArray[Any]:
        return np.bincount(steps, weights, self.steps + 1)[1:]
