"""Scores of one answer per picture: rank of the truth, recall, precision and F1 of classes, and their averages.

By hand, though torchmetrics has them all: on classes without pictures its averages are not scikit-learn's (a balanced
accuracy of 0.17 for 0.25), its top-k answers hang on how torch's topk orders equal scores, and importing it takes
longer than computing everything here for ImageNet. The tests hold these functions to scikit-learn.

Shapes: n pictures, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CHUNK = 4096  # pictures at a time: 21,843 classes in float64 are 0.7 GB

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Marks:
    """Each picture, marked; all (n,)."""

    truth: Ints
    answer: Ints  # the class with the highest logit; of equals, the first
    rank: Ints  # classes that stand before the truth: 0 is right, under 5 is in the top five
    confidence: Floats  # probability of the answer
    of_truth: Floats  # probability of the truth
    loss: Floats  # cross-entropy

    def right(self, k: int = 1) -> int:
        """Pictures whose truth is among the k best answers."""
        return int((self.rank < k).sum())


def mark(logits: Tensor, labels: Tensor) -> Marks:
    """(n, K), (n,) → marks. Of equal logits the class with the lower index stands first, as in argmax.

    scikit-learn's top_k_accuracy_score puts the higher index first; its top-1 is then not its accuracy of the argmax.
    """
    columns: list[list[Tensor]] = []
    for some, truth in zip(logits.split(CHUNK), labels.split(CHUNK), strict=True):
        own = some.gather(1, truth[:, None])
        place = torch.arange(some.shape[1])
        # classes behind the truth, not those before it: a NaN is then never right
        behind = (some < own) | ((some == own) & (place > truth[:, None]))
        answer = some.argmax(1, keepdim=True)
        surprise = -some.double().log_softmax(1)
        columns.append(
            [
                answer[:, 0],
                some.shape[1] - 1 - behind.sum(1),
                (-surprise.gather(1, answer)[:, 0]).exp(),
                surprise.gather(1, truth[:, None])[:, 0],
            ]
        )
    answers, ranks, confidences, losses = (torch.cat(column).numpy() for column in zip(*columns, strict=True))
    return Marks(labels.numpy(), answers, ranks, confidences, np.exp(-losses), losses)


def confusion_matrix(truth: Ints, answer: Ints, classes: int) -> Ints:
    """(K, K) counts; rows are the truth, columns the answer."""
    return np.bincount(truth * classes + answer, minlength=classes**2).reshape(classes, classes)


@dataclass(frozen=True)
class Counts:
    """What recall, precision and F1 are made of; all (K,)."""

    pictures: NDArray[Any]
    answered: NDArray[Any]
    right: NDArray[Any]

    @property
    def recall(self) -> Floats:
        """NaN for a class without pictures."""
        return _share(self.right, self.pictures)

    @property
    def precision(self) -> Floats:
        """NaN for a class that was never answered."""
        return _share(self.right, self.answered)

    @property
    def f1(self) -> Floats:
        """NaN for a class that occurs neither in the truth nor in the answers."""
        return _share(2 * self.right, self.pictures + self.answered)


def count(truth: Ints, answer: Ints, classes: int, weights: NDArray[Any] | None = None) -> Counts:
    """A picture with the weight 3 counts as three of its kind."""
    right = truth == answer
    return Counts(
        np.bincount(truth, weights, classes),
        np.bincount(answer, weights, classes),
        np.bincount(truth[right], None if weights is None else weights[right], classes),
    )


def macro_f1(counts: Counts) -> float:
    """Over the classes that occur in the truth or in the answers, as scikit-learn's."""
    return float(np.nanmean(counts.f1))


def balanced_accuracy(counts: Counts) -> float:
    """The mean recall of the classes that have pictures."""
    return float(np.nanmean(counts.recall))


def _share(part: NDArray[Any], whole: NDArray[Any]) -> Floats:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
