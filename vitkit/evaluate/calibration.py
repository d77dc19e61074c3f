"""Measure calibration: accuracy in bins of confidence, and the expected calibration error (Guo et al. 2017).

Written by hand: torchmetrics gives the error without the bins, and counts a confidence of exactly 1, which float32
reaches often, in a sixteenth bin of its own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluate.evaluation import ReliabilityBin

BINS = 15


def reliability_bins(
    confidence: NDArray[Any], correct: NDArray[np.bool_], bins: int = BINS
) -> tuple[ReliabilityBin, ...]:
    """Return bins of equal width; a border belongs to the bin above it, 1 to the last. An empty bin holds zeros."""
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
