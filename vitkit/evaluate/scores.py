"""Compute the scores of an Evaluation from logits and labels, single-label and multi-label.

Shapes: n images, K classes of the model.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from vitkit.data.sources.dataset import DataError, PackedStrings
from vitkit.data.sparse_labels import SparseLabels
from vitkit.evaluate import metrics, multilabel
from vitkit.evaluate.evaluation import ClassScore, Mistake
from vitkit.evaluate.intervals import (
    balanced_accuracy_interval,
    bootstrap_deviations,
    interval_from_deviation,
    proportion,
)

MISTAKES = 24
LARGEST_CONFUSION = 1000  # classes; ImageNet-21k's would have half a billion cells
NOTHING = "nothing"  # the name of an empty set of labels


@dataclass(frozen=True)
class ScoredImages:
    """The images that are scored, and the names of classes and images."""

    classes: tuple[str, ...]  # (K,)
    keys: PackedStrings  # of all images of the split
    indices: NDArray[np.int64]  # (n,) of the scored images in the split


def score_single_label(images: ScoredImages, logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Score logits (n, K) against labels (n,)."""
    scores = metrics.score_images(logits, labels)
    n, classes = logits.shape
    counts = metrics.count_classes(scores.labels, scores.predictions, classes)
    (f1_deviation,) = bootstrap_deviations(scores.labels, scores.predictions, classes, (metrics.macro_f1,))
    bins = metrics.reliability_bins(scores.confidence, scores.rank == 0)
    confusion: list[list[int]] = []
    if classes <= LARGEST_CONFUSION:
        confusion = metrics.confusion_matrix(scores.labels, scores.predictions, classes).tolist()
    return {
        "loss": float(scores.loss.mean()),
        "top1": proportion(scores.correct(1), n),
        "top5": proportion(scores.correct(5), n) if classes > 5 else None,
        "macro_f1": interval_from_deviation(metrics.macro_f1(counts), f1_deviation, counts.images),
        "balanced_accuracy": balanced_accuracy_interval(counts),
        "calibration_error": metrics.calibration_error(bins),
        "reliability": bins,
        "per_class": per_class_scores(images.classes, counts),
        "confusion": tuple(map(tuple, confusion)),
        "mistakes": _most_confident_mistakes(images, scores),
    }


def score_multilabel(
    images: ScoredImages,
    logits: Tensor,
    labels: SparseLabels,
    known: NDArray[np.bool_],
    thresholds: tuple[float, ...] | None = None,
) -> dict[str, Any]:
    """Score logits (n, K) against the labels of the images.

    Only `known` (K,) classes are scored: the data say nothing about classes that they do not have. A class is predicted
    from its threshold on, or above one half.
    """
    if not len(labels.numbers):
        raise DataError("none of these images has a label that the model knows; there is nothing to score.")
    least = None if thresholds is None else torch.tensor(thresholds)

    def predict(rows: slice) -> NDArray[np.bool_]:
        above = logits[rows] > 0 if least is None else logits[rows].sigmoid() >= least
        return above.numpy() & known

    loss, loss_of_predicted, wrong = np.empty(len(labels)), np.empty(len(labels)), np.empty(len(labels), bool)
    predictions, correct = (np.zeros(len(known), np.int64) for _ in range(2))
    for rows, present in labels.dense_blocks(metrics.CHUNK):
        predicted = predict(rows)
        loss[rows], loss_of_predicted[rows] = (
            _set_loss(logits[rows][:, known], chosen[:, known]) for chosen in (present, predicted)
        )
        wrong[rows] = (predicted != present).any(axis=1)
        predictions += predicted.sum(axis=0)
        correct += (predicted & present).sum(axis=0)
    counts = metrics.ClassCounts(labels.counts(), predictions, correct)
    precisions = multilabel.average_precision(logits.numpy(), labels)
    deviation = multilabel.bootstrap_deviation(logits.numpy(), labels)
    mistaken = np.flatnonzero(wrong)
    worst = mistaken[np.argsort(-loss[mistaken], kind="stable")[:MISTAKES]]

    def names(numbers: NDArray[Any]) -> str:
        return ", ".join(images.classes[number] for number in numbers) or NOTHING

    return {
        "loss": float(loss.mean() / known.sum()),
        "mean_average_precision": interval_from_deviation(
            multilabel.mean_average_precision(precisions), deviation, counts.images
        ),
        "per_class": per_class_scores(images.classes, counts, precisions, thresholds),
        "mistakes": tuple(
            _mistake(
                images,
                row,
                names(labels[row]),
                names(np.flatnonzero(predict(slice(row, row + 1))[0])),
                np.exp(-loss_of_predicted[row]),
                np.exp(-loss[row]),
            )
            for row in worst.tolist()
        ),
    }


def _set_loss(logits: Tensor, present: NDArray[np.bool_]) -> metrics.Floats:
    """Return (n,) negative logarithms of the probability of exactly these labels."""
    target = torch.from_numpy(present)
    return binary_cross_entropy_with_logits(logits.double(), target.double(), reduction="none").sum(1).numpy()


def per_class_scores(
    names: tuple[str, ...],
    counts: metrics.ClassCounts,
    precisions: metrics.Floats | None = None,
    thresholds: tuple[float, ...] | None = None,
) -> tuple[ClassScore, ...]:
    columns = [_or_none(column) for column in (counts.recall, counts.precision, counts.f1)]
    areas = [None] * len(names) if precisions is None else _or_none(precisions)
    return tuple(
        ClassScore(
            name=name,
            images=int(images),
            recall=recall,
            precision=precision,
            f1=f1,
            average_precision=area,
            threshold=threshold,
        )
        for name, images, recall, precision, f1, area, threshold in zip(
            names, counts.images, *columns, areas, thresholds or [None] * len(names), strict=True
        )
    )


def _or_none(values: metrics.Floats) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _most_confident_mistakes(images: ScoredImages, scores: metrics.ImageScores) -> tuple[Mistake, ...]:
    wrong = np.flatnonzero(scores.rank > 0)
    worst = wrong[np.argsort(-scores.confidence[wrong], kind="stable")[:MISTAKES]]
    return tuple(
        _mistake(
            images,
            row,
            images.classes[scores.labels[row]],
            images.classes[scores.predictions[row]],
            scores.confidence[row],
            scores.label_probability[row],
        )
        for row in worst
    )


def _mistake(
    images: ScoredImages, row: int, truth: str, prediction: str, confidence: float, label_probability: float
) -> Mistake:
    index = int(images.indices[row])
    return Mistake(
        key=images.keys[index],
        index=index,
        truth=truth,
        answer=prediction,
        confidence=float(confidence),
        of_truth=float(label_probability),
    )
