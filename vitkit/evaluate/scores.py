"""Logits and labels → the scores of an Evaluation, for one label per picture and for several.

Shapes: n pictures, K classes of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from vitkit.data.sources.base import DataError, Names
from vitkit.evaluate import multilabel
from vitkit.evaluate.calibration import calibration_error, reliability
from vitkit.evaluate.evaluation import ClassScore, Mistake
from vitkit.evaluate.intervals import from_spread, share, spreads
from vitkit.evaluate.metrics import (
    CHUNK,
    Counts,
    Floats,
    Marks,
    balanced_accuracy,
    confusion_matrix,
    count,
    macro_f1,
    mark,
)

MISTAKES = 24
LARGEST_CONFUSION = 1000  # classes; ImageNet-21k's would have half a billion cells
NOTHING = "nothing"  # where a picture has none of the labels


@dataclass(frozen=True)
class Asked:
    classes: tuple[str, ...]  # (K,)
    keys: Names  # of the whole split
    indices: NDArray[np.int64]  # (n,) in the split, of those that were answered


def score_one_label(asked: Asked, logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """logits (n, K), labels (n,)."""
    marks = mark(logits, labels)
    n, classes = logits.shape
    counts = count(marks.truth, marks.answer, classes)
    of_f1, of_recall = spreads(marks.truth, marks.answer, classes, (macro_f1, balanced_accuracy))
    bins = reliability(marks.confidence, marks.rank == 0)
    confusion = confusion_matrix(marks.truth, marks.answer, classes) if classes <= LARGEST_CONFUSION else np.empty(0)
    return {
        "loss": float(marks.loss.mean()),
        "top1": share(marks.right(1), n),
        "top5": share(marks.right(5), n) if classes > 5 else None,
        "macro_f1": from_spread(macro_f1(counts), of_f1, counts.pictures),
        "balanced_accuracy": from_spread(balanced_accuracy(counts), of_recall, counts.pictures),
        "calibration_error": calibration_error(bins),
        "reliability": bins,
        "per_class": _per_class(asked.classes, counts),
        "confusion": tuple(map(tuple, confusion.tolist())),
        "mistakes": _most_confident_mistakes(asked, marks),
    }


def score_several_labels(asked: Asked, logits: Tensor, labels: Tensor, known: NDArray[np.bool_]) -> dict[str, Any]:
    """logits (n, K); labels (n, K) of 0 and 1, or (n,) where pictures of one label meet a model of several.

    Only `known` (K,) classes are scored: what the data do not know, they cannot deny.
    """
    if labels.ndim == 1:
        labels = one_hot(labels, logits.shape[1])
    there, answered = (labels > 0).numpy(), (logits > 0).numpy() & known  # > 0: rather there than not
    if not there.any():
        raise DataError("none of these pictures has a label that the model knows; there is nothing to score.")
    loss, of_answer = (_set_loss(logits[:, known], chosen[:, known]) for chosen in (there, answered))
    precisions = multilabel.average_precision(logits.numpy(), there)
    counts = multilabel.count(answered, there)
    wrong = np.flatnonzero((answered != there).any(axis=1))
    worst = wrong[np.argsort(-loss[wrong], kind="stable")[:MISTAKES]]

    def called(row: NDArray[np.bool_]) -> str:
        return ", ".join(asked.classes[place] for place in np.flatnonzero(row)) or NOTHING

    return {
        "loss": float(loss.mean() / known.sum()),
        "mean_average_precision": from_spread(
            multilabel.mean_average_precision(precisions), multilabel.spread(logits.numpy(), there), counts.pictures
        ),
        "per_class": _per_class(asked.classes, counts, precisions),
        "mistakes": tuple(
            _mistake(
                asked,
                place,
                called(there[place]),
                called(answered[place]),
                np.exp(-of_answer[place]),
                np.exp(-loss[place]),
            )
            for place in worst
        ),
    }


def _set_loss(logits: Tensor, there: NDArray[np.bool_]) -> Floats:
    """(n,): minus the logarithm of the probability that exactly these labels are there."""
    parts = [
        binary_cross_entropy_with_logits(some.double(), truth.double(), reduction="none").sum(1)
        for some, truth in zip(logits.split(CHUNK), torch.from_numpy(there).split(CHUNK), strict=True)
    ]
    return torch.cat(parts).numpy()


def _per_class(names: tuple[str, ...], counts: Counts, precisions: Floats | None = None) -> tuple[ClassScore, ...]:
    columns = [_or_none(column) for column in (counts.recall, counts.precision, counts.f1)]
    areas = [None] * len(names) if precisions is None else _or_none(precisions)
    return tuple(
        ClassScore(name=name, pictures=int(number), recall=recall, precision=precision, f1=f1, average_precision=area)
        for name, number, recall, precision, f1, area in zip(names, counts.pictures, *columns, areas, strict=True)
    )


def _or_none(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _most_confident_mistakes(asked: Asked, marks: Marks) -> tuple[Mistake, ...]:
    wrong = np.flatnonzero(marks.rank > 0)
    worst = wrong[np.argsort(-marks.confidence[wrong], kind="stable")[:MISTAKES]]
    return tuple(
        _mistake(
            asked,
            place,
            asked.classes[marks.truth[place]],
            asked.classes[marks.answer[place]],
            marks.confidence[place],
            marks.of_truth[place],
        )
        for place in worst
    )


def _mistake(asked: Asked, place: int, truth: str, answer: str, confidence: float, of_truth: float) -> Mistake:
    index = int(asked.indices[place])
    return Mistake(
        key=asked.keys[index],
        index=index,
        truth=truth,
        answer=answer,
        confidence=float(confidence),
        of_truth=float(of_truth),
    )
