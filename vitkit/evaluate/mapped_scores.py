"""Score a model on classes that each stand for several of its own, as for ObjectNet (paper, D.9).

The model chooses among all of its classes. A prediction is correct if that class stands for the image's class, and in
the top five if one of the five most probable classes does. The probability of a mapped class is the sum over its model
classes.

Shapes: n images, K classes of the model, M mapped classes.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.evaluate import metrics
from vitkit.evaluate.evaluation import Mistake
from vitkit.evaluate.intervals import (
    balanced_accuracy_interval,
    bootstrap_deviations,
    interval_from_deviation,
    proportion,
)
from vitkit.evaluate.scores import LARGEST_CONFUSION, MISTAKES, ScoredImages, per_class_scores

TOP = 5


def score_mapped(
    images: ScoredImages, logits: Tensor, labels: Tensor, targets: NDArray[np.int64], names: tuple[str, ...] | None
) -> dict[str, Any]:
    """Score logits (n, K) against labels (n,) of mapped classes; `targets` (K,) are the model classes' own, -1: none.

    `names` are the model's classes, in which mistakes are told.
    """
    classes = len(images.classes)
    own = torch.from_numpy(targets)
    best = torch.cat(
        [
            chunk.masked_fill(own != label[:, None], -torch.inf).argmax(1)
            for chunk, label in zip(logits.split(metrics.CHUNK), labels.split(metrics.CHUNK), strict=True)
        ]
    )  # (n,) the model class of the label's with the highest logit: the label is as high as it
    scores = metrics.score_images(logits, best)
    truths, chosen = labels.numpy(), targets[scores.predictions]
    predictions = np.where(chosen < 0, classes, chosen)  # class M: none of the mapped ones
    confidence, of_truth = _summed_probabilities(logits, own, labels, torch.from_numpy(scores.predictions))
    bins = metrics.reliability_bins(confidence, scores.rank == 0)
    counts = _mapped(metrics.count_classes(truths, predictions, classes + 1))
    (deviation,) = bootstrap_deviations(
        truths, predictions, classes + 1, (lambda drawn: metrics.macro_f1(_mapped(drawn)),)
    )
    confusion: list[list[int]] = []
    if classes <= LARGEST_CONFUSION:
        confusion = metrics.confusion_matrix(truths, predictions, classes + 1)[:-1, :-1].tolist()
    wrong = np.flatnonzero(scores.rank > 0)
    worst = wrong[np.argsort(-confidence[wrong], kind="stable")[:MISTAKES]]
    return {
        "loss": float(-np.log(of_truth).mean()),
        "top1": proportion(scores.correct(1), len(logits)),
        "top5": proportion(scores.correct(TOP), len(logits)) if logits.shape[1] > TOP else None,
        "macro_f1": interval_from_deviation(metrics.macro_f1(counts), deviation, counts.images),
        "balanced_accuracy": balanced_accuracy_interval(counts),
        "calibration_error": metrics.calibration_error(bins),
        "reliability": bins,
        "per_class": per_class_scores(images.classes, counts),
        "confusion": tuple(map(tuple, confusion)),
        "mistakes": tuple(
            Mistake(
                key=images.keys[int(images.indices[row])],
                index=int(images.indices[row]),
                truth=images.classes[truths[row]],
                answer=names[scores.predictions[row]] if names else str(scores.predictions[row]),
                confidence=float(confidence[row]),
                of_truth=float(of_truth[row]),
            )
            for row in worst
        ),
    }


def _mapped(counts: metrics.ClassCounts) -> metrics.ClassCounts:
    """Return the counts without those of predictions that are none of the mapped classes."""
    return metrics.ClassCounts(counts.images[:-1], counts.predicted[:-1], counts.correct[:-1])


def _summed_probabilities(
    logits: Tensor, own: Tensor, labels: Tensor, predictions: Tensor
) -> tuple[metrics.Floats, metrics.Floats]:
    """Return (n,) probabilities of the predicted and of the true mapped class; one that is not mapped has its own."""
    columns = []
    for start in range(0, len(logits), metrics.CHUNK):
        rows = slice(start, start + metrics.CHUNK)
        probabilities = logits[rows].double().softmax(1)
        predicted = own[predictions[rows]]
        itself = torch.nn.functional.one_hot(predictions[rows], len(own)).bool()
        same = torch.where((predicted < 0)[:, None], itself, own == predicted[:, None])
        columns.append([(probabilities * same).sum(1), (probabilities * (own == labels[rows][:, None])).sum(1)])
    confidence, of_truth = (torch.cat(column).numpy() for column in zip(*columns, strict=True))
    return np.minimum(confidence, 1.0), np.maximum(of_truth, np.finfo(np.float64).tiny)
