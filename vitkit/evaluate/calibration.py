"""Is a model as often right as it says? Answers in bins of confidence (Guo et al. 2017).

By hand: torchmetrics gives the error without the bins, and counts a confidence of exactly 1, which float32 reaches
often, in a sixteenth bin of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluate.evaluation import Bin

BINS = 15


def reliability(confidence: NDArray[Any], right: NDArray[np.bool_], bins: int = BINS) -> tuple[Bin, ...]:
    """Bins of equal width; a border belongs to the bin above it, 1 to the last. An empty bin holds zeros."""
    borders = np.linspace(0, 1, bins + 1)
    place = np.clip(np.searchsorted(borders, confidence, side="right") - 1, 0, bins - 1)
    pictures = np.bincount(place, minlength=bins)
    sums = np.bincount(place, confidence, bins), np.bincount(place, right, bins)
    confidences, accuracies = (total / np.maximum(pictures, 1) for total in sums)
    return tuple(
        Bin(
            low=float(borders[i]),
            high=float(borders[i + 1]),
            pictures=int(pictures[i]),
            confidence=float(confidences[i]),
            accuracy=float(accuracies[i]),
        )
        for i in range(bins)
    )


def calibration_error(bins: Sequence[Bin]) -> float:
    """The gap between confidence and accuracy, averaged over pictures (ECE)."""
    return sum(one.pictures * abs(one.confidence - one.accuracy) for one in bins) / sum(one.pictures for one in bins)
