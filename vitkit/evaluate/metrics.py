"""Metrics of single-label predictions: rank of the label, recall, precision and F1 of classes, and their averages.

Written by hand, though torchmetrics has them all: on classes without images its averages are not scikit-learn's (a
balanced accuracy of 0.17 for 0.25), its top-k depends on how torch's topk orders equal scores, and importing it takes
longer than computing everything here for ImageNet. The tests compare these functions with scikit-learn.

Shapes: n images, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.evaluate.evaluation import ReliabilityBin

CHUNK = 4096  # images at a time: 21,843 classes in float64 are 0.7 GB
BINS = 15  # of confidence

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ImageScores:
    """The scores of every image, each (n,)."""

    labels: Ints
    predictions: Ints  # the class with the highest logit; of equals, the first
    rank: Ints  # classes ranked before the label: 0 is correct, under 5 is in the top five
    confidence: Floats  # probability of the prediction
    label_probability: Floats
    loss: Floats  # cross-entropy

    def correct(self, k: int = 1) -> int:
        """Return the number of images whose label is among the k best predictions."""
        return int((self.rank < k).sum())


def score_images(logits: Tensor, labels: Tensor) -> ImageScores:
    """Score logits (n, K) against labels (n,). Of equal logits the lower class ranks first, as in argmax.

    scikit-learn's top_k_accuracy_score ranks the higher class first; its top-1 is then not its accuracy of the argmax.
    """
    columns: list[list[Tensor]] = []
    for chunk, label in zip(logits.split(CHUNK), labels.split(CHUNK), strict=True):
        label_logit = chunk.gather(1, label[:, None])
        classes = torch.arange(chunk.shape[1])
        # classes ranked after the label, not those before it: a NaN is then never correct
        after = (chunk < label_logit) | ((chunk == label_logit) & (classes > label[:, None]))
        prediction = chunk.argmax(1, keepdim=True)
        negative_log = -chunk.double().log_softmax(1)
        columns.append(
            [
                prediction[:, 0],
                chunk.shape[1] - 1 - after.sum(1),
                (-negative_log.gather(1, prediction)[:, 0]).exp(),
                negative_log.gather(1, label[:, None])[:, 0],
            ]
        )
    predictions, ranks, confidences, losses = (torch.cat(column).numpy() for column in zip(*columns, strict=True))
    return ImageScores(labels.numpy(), predictions, ranks, confidences, np.exp(-losses), losses)


def confusion_matrix(labels: Ints, predictions: Ints, classes: int) -> Ints:
    """Return counts (K, K); rows are labels, columns predictions."""
    return np.bincount(labels * classes + predictions, minlength=classes**2).reshape(classes, classes)


@dataclass(frozen=True)
class ClassCounts:
    """The counts that recall, precision and F1 are computed from, each (K,)."""

    images: NDArray[Any]
    predicted: NDArray[Any]
    correct: NDArray[Any]

    @property
    def recall(self) -> Floats:
        """Return the recall, NaN for a class without images."""
        return _ratio(self.correct, self.images)

    @property
    def precision(self) -> Floats:
        """Return the precision, NaN for a class that was never predicted."""
        return _ratio(self.correct, self.predicted)

    @property
    def f1(self) -> Floats:
        """Return F1, NaN for a class that is neither a label nor a prediction."""
        return _ratio(2 * self.correct, self.images + self.predicted)


def count_classes(labels: Ints, predictions: Ints, classes: int, weights: NDArray[Any] | None = None) -> ClassCounts:
    """Count images per class; an image with the weight 3 counts as three."""
    correct = labels == predictions
    return ClassCounts(
        np.bincount(labels, weights, classes),
        np.bincount(predictions, weights, classes),
        np.bincount(labels[correct], None if weights is None else weights[correct], classes),
    )


def macro_f1(counts: ClassCounts) -> float:
    """Return the mean F1 of the classes that are a label or a prediction, as scikit-learn does."""
    return float(np.nanmean(counts.f1))


def balanced_accuracy(counts: ClassCounts) -> float:
    """Return the mean recall of the classes that have images."""
    return float(np.nanmean(counts.recall))


def _ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> Floats:
    return np.divide(numerator, denominator, out=np.full(len(denominator), np.nan), where=denominator > 0)


def reliability_bins(
    confidence: NDArray[Any], correct: NDArray[np.bool_], bins: int = BINS
) -> tuple[ReliabilityBin, ...]:
    """Return accuracy in bins of confidence (Guo et al. 2017); a border belongs to the bin above it, 1 to the last.

    Written by hand: torchmetrics gives the error without the bins, and counts a confidence of exactly 1, which float32
    reaches often, in a sixteenth bin of its own.
    """
    borders = np.linspace(0, 1, bins + 1)
    index = np.clip(np.searchsorted(borders, confidence, side="right") - 1, 0, bins - 1)
    images = np.bincount(index, minlength=bins)
    sums = np.bincount(index, confidence, bins), np.bincount(index, correct, bins)
    confidences, accuracies = (total / np.maximum(images, 1) for total in sums)
    return tuple(
        ReliabilityBin(
            low=float(borders[i]),
            high=float(borders[i + 1]),
            images=int(images[i]),
            confidence=float(confidences[i]),
            accuracy=float(accuracies[i]),
        )
        for i in range(bins)
    )


def calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Return the gap between confidence and accuracy, averaged over images (ECE)."""
    return sum(one.images * abs(one.confidence - one.accuracy) for one in bins) / sum(one.images for one in bins)
