"""Make the scores of a SegmentationEvaluation from counted masks: tables, the worst images and some typical ones.

Shapes: n scored images, K classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.groups import Leak
from vitkit.evaluate.segmentation_evaluation import LeakedMasks, MaskScore, SegmentedClassScore
from vitkit.evaluate.segmentation_scores import MaskCounts, ScoresOfMasks, score_masks

WORST = 24
TYPICAL = 6  # images at even steps from the best to the worst


def summarise_masks(
    counts: MaskCounts, classes: Sequence[str], keys: Sequence[str], leaked: NDArray[np.uint8] | None = None
) -> dict[str, Any]:
    """Return the fields of a SegmentationEvaluation that come from masks; `keys` and `leaked` are the split's."""
    scores = score_masks(counts)
    images = _ranked_images(counts, keys)
    steps = np.linspace(0, len(images) - 1, min(TYPICAL, len(images))).round().astype(int)
    return {
        "images": len(counts),
        "pixels": int(counts.confusion.sum()),
        "ignored": counts.ignored,
        "mean_iou": scores.mean_iou,
        "pixel_accuracy": scores.pixel_accuracy,
        "mean_accuracy": scores.mean_accuracy,
        "per_class": _per_class(counts, scores, classes),
        "confusion": tuple(map(tuple, counts.confusion.tolist())),
        "worst": tuple(image for image in images[:WORST] if image.pixel_accuracy < 1),
        "typical": tuple(images[row] for row in steps[::-1]),
        "leaked": _without_leaked(counts, leaked),
    }


def _per_class(counts: MaskCounts, scores: ScoresOfMasks, names: Sequence[str]) -> tuple[SegmentedClassScore, ...]:
    total = counts.total
    images = (counts.per_image.target > 0).sum(0)
    return tuple(
        SegmentedClassScore(
            name=name,
            images=int(images[number]),
            pixels=int(total.target[number]),
            predicted=int(total.predicted[number]),
            iou=scores.iou[number],
            accuracy=None if np.isnan(total.accuracy[number]) else float(total.accuracy[number]),
        )
        for number, name in enumerate(names)
    )


def _ranked_images(counts: MaskCounts, keys: Sequence[str]) -> list[MaskScore]:
    """Return the images with a counted pixel, that of the lowest mean IoU first."""
    per_image = counts.per_image
    values, accuracies = per_image.mean_iou, per_image.pixel_accuracy
    rows = np.flatnonzero(~np.isnan(accuracies))
    return [
        MaskScore(
            key=keys[counts.indices[row]],
            index=counts.indices[row],
            mean_iou=float(values[row]),
            pixel_accuracy=float(accuracies[row]),
        )
        for row in rows[np.argsort(values[rows], kind="stable")].tolist()
    ]


def _without_leaked(counts: MaskCounts, leaked: NDArray[np.uint8] | None) -> LeakedMasks | None:
    """Count the scored images that have leaked from training, and score the others; None without any."""
    if leaked is None or not (kinds := leaked[counts.indices]).any():
        return None
    others = np.flatnonzero(kinds == Leak.NONE)
    rest = counts.select(others)
    return LeakedMasks(
        identical=int((kinds == Leak.IDENTICAL).sum()),
        nearly_identical=int((kinds == Leak.NEAR).sum()),
        grouped=int((kinds == Leak.GROUP).sum()),
        others=len(others),
        mean_iou=score_masks(rest).mean_iou if rest.total.target.any() else None,
    )
