"""Which classes of pixels are taken for which others: the largest shares off the diagonal of the confusion matrix."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation
from vitkit.text import percent


@dataclass(frozen=True)
class ClassConfusion:
    truth: str
    prediction: str
    pixels: int
    of_truth: float  # share of the true class's pixels
    of_errors: float  # share of all wrong pixels

    def __str__(self) -> str:
        return f"{percent(self.of_truth)} of {self.truth} taken for {self.prediction}"


def class_confusions(evaluation: SegmentationEvaluation) -> list[ClassConfusion]:
    """Return the pairs of classes that are confused, those with the largest share of all wrong pixels first."""
    counts = np.array(evaluation.confusion, np.int64)
    totals = counts.sum(1)
    np.fill_diagonal(counts, 0)
    errors = int(counts.sum())
    order = np.argsort(-counts, axis=None, kind="stable")
    names = evaluation.classes
    return [
        ClassConfusion(
            names[truth],
            names[prediction],
            int(counts[truth, prediction]),
            float(counts[truth, prediction] / totals[truth]),
            float(counts[truth, prediction] / errors),
        )
        for truth, prediction in zip(*np.unravel_index(order[: np.count_nonzero(counts)], counts.shape), strict=True)
    ]


def largest_errors(confusion: NDArray[np.int64], most: int) -> list[tuple[int, int, float]]:
    """Return the largest cells off the diagonal: true class, predicted class, share of all pixels."""
    wrong, total = confusion.copy(), int(confusion.sum())
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    cells = [divmod(int(cell), len(wrong)) for cell in order]
    return [
        (truth, prediction, wrong[truth, prediction] / total) for truth, prediction in cells if wrong[truth, prediction]
    ]
