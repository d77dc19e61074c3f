"""Scores of masks: IoU and accuracy of classes, their means, pixel accuracy and the confusion matrix, image by image.

The rule for the mean IoU is that of mmseg, torchmetrics' JaccardIndex and the benchmarks: pixels are added up over all
images, a class's IoU is the pixels in both masks over those in either, and the mean is over the classes that occur in
either, on any image. Ignored pixels of the ground-truth mask count nowhere, whatever was predicted there. The mean IoU
of one image follows the same rule for its own classes (torchmetrics' MeanIoU).

Written by hand, because torchmetrics keeps no counts of single images, from which intervals and the worst images come;
the tests compare everything with it.

Shapes: n images, K classes, h x w pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.compute.confusion import confusion_matrices
from vitkit.data.masks.ignore import IGNORE
from vitkit.data.sources.dataset import DataError
from vitkit.data.stateless_rng import generator
from vitkit.evaluate.evaluation import Estimate
from vitkit.evaluate.intervals import RESAMPLES, RESAMPLING, interval_from_deviation
from vitkit.evaluate.metrics import Floats, Ints

BLOCK = 1 << 22  # counts of images that are resampled at a time: 32 MiB as float64


def pixel_confusion(predicted: Tensor, target: Tensor, classes: int) -> Tensor:
    """Count the pixels of two masks (…, h, w) per pair of classes: (K, K) int64, rows given, columns predicted.

    It is computed on the masks' device. Pixels that are IGNORE in the ground-truth mask are not counted.
    """
    if bool(((target >= classes) & (target != IGNORE)).any()) or bool((predicted >= classes).any()):
        raise ValueError(f"a mask has other numbers than those of {classes} classes")
    return confusion_matrices(predicted.flatten()[None], target.flatten()[None], classes)[0]


@dataclass(frozen=True)
class PixelCounts:
    """Pixels per class, (…, K) each: in ground-truth masks, in predicted ones, and in both."""

    target: NDArray[Any]
    predicted: NDArray[Any]
    correct: NDArray[Any]

    @classmethod
    def of(cls, confusion: NDArray[Any]) -> PixelCounts:
        return cls(confusion.sum(-1), confusion.sum(-2), np.diagonal(confusion, axis1=-2, axis2=-1))

    @property
    def iou(self) -> Floats:
        """Return the IoU, NaN for a class that is in neither mask."""
        return _ratio(self.correct, self.target + self.predicted - self.correct)

    @property
    def accuracy(self) -> Floats:
        """Return the share of each class's pixels that were found, NaN for a class that no ground-truth mask has."""
        return _ratio(self.correct, self.target)

    @property
    def mean_iou(self) -> Floats:
        """Return the mean IoU of the classes that occur, NaN where no pixel was counted: (…)."""
        return _mean(self.iou)

    @property
    def mean_accuracy(self) -> Floats:
        return _mean(self.accuracy)

    @property
    def pixel_accuracy(self) -> Floats:
        return _ratio(self.correct.sum(-1), self.target.sum(-1))


@dataclass
class MaskCounts:
    """The counts of masks that come one after the other; those of several processes can be joined."""

    classes: int
    confusion: Ints = field(init=False)  # (K, K) of all images
    indices: list[int] = field(default_factory=list)  # (n,) of the images in their split
    ignored: int = 0  # pixels
    _target: list[Ints] = field(default_factory=list)
    _predicted: list[Ints] = field(default_factory=list)
    _correct: list[Ints] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.confusion = np.zeros((self.classes, self.classes), np.int64)

    def __len__(self) -> int:
        return len(self.indices)

    def add(self, index: int, predicted: Tensor | NDArray[np.uint8], target: Tensor | NDArray[np.uint8]) -> None:
        """Count the masks (h, w) of the image with this index."""
        predicted, target = torch.as_tensor(predicted), torch.as_tensor(target)
        if predicted.shape != target.shape:
            raise ValueError(f"a mask of {tuple(predicted.shape)} for one of {tuple(target.shape)}")
        confusion = pixel_confusion(predicted, target.to(predicted.device), self.classes).cpu().numpy()
        self.add_confusion(index, confusion, target.numel() - int(confusion.sum()))

    def add_confusion(self, index: int, confusion: Ints, ignored: int) -> None:
        """Count an image of which the pixels per pair of classes are known."""
        counts = PixelCounts.of(confusion)
        self.confusion += confusion
        self.ignored += ignored
        self.indices.append(index)
        self._target.append(counts.target)
        self._predicted.append(counts.predicted)
        self._correct.append(counts.correct.copy())

    def join(self, other: MaskCounts) -> None:
        """Add the counts of other images."""
        self.confusion += other.confusion
        self.ignored += other.ignored
        self.indices += other.indices
        self._target += other._target
        self._predicted += other._predicted
        self._correct += other._correct

    def select(self, rows: NDArray[np.int64]) -> MaskCounts:
        """Return the counts of some images; their confusion matrix is not known any more, and zero."""
        chosen = MaskCounts(self.classes)
        chosen.indices = [self.indices[row] for row in rows]
        for mine, theirs in (
            (chosen._target, self._target),
            (chosen._predicted, self._predicted),
            (chosen._correct, self._correct),
        ):
            mine += [theirs[row] for row in rows]
        return chosen

    @property
    def total(self) -> PixelCounts:
        """The counts of all images: (K,)."""
        return PixelCounts(*(_sum(rows, self.classes) for rows in (self._target, self._predicted, self._correct)))

    @property
    def per_image(self) -> PixelCounts:
        """The counts of each image: (n, K)."""
        return PixelCounts(*(_stack(rows, self.classes) for rows in (self._target, self._predicted, self._correct)))


@dataclass(frozen=True)
class ScoresOfMasks:
    """The scores of all images together, with their intervals over the choice of the images."""

    mean_iou: Estimate
    pixel_accuracy: Estimate
    mean_accuracy: Estimate
    iou: tuple[Estimate | None, ...]  # (K,)


def score_masks(counts: MaskCounts) -> ScoresOfMasks:
    """Return the scores and their 95 % intervals; a DataError where no pixel was counted.

    A score's standard deviation is that over resamples of the images; its interval is Wilson's for as many images as
    would give a proportion that deviation (`vitkit.evaluate.intervals`).
    """
    per_image, total = counts.per_image, counts.total
    scored = per_image.target.sum(1) > 0
    if not scored.any():
        raise DataError(
            "the masks ignore every pixel of these images; there is nothing to score.", images=f"{len(counts):,}"
        )
    resampled = _resample(per_image)
    images = np.array([scored.sum()])

    def estimate(name: str) -> Estimate:
        return interval_from_deviation(float(getattr(total, name)), float(np.std(getattr(resampled, name))), images)

    return ScoresOfMasks(
        estimate("mean_iou"), estimate("pixel_accuracy"), estimate("mean_accuracy"), _class_ious(per_image, resampled)
    )


def _class_ious(per_image: PixelCounts, resampled: PixelCounts) -> tuple[Estimate | None, ...]:
    total = PixelCounts(per_image.target.sum(0), per_image.predicted.sum(0), per_image.correct.sum(0))
    occurs = ((per_image.target + per_image.predicted) > 0).sum(0)  # images
    estimates: list[Estimate | None] = []
    for value, draws, images in zip(total.iou, resampled.iou.T, occurs, strict=True):
        if np.isnan(value):
            estimates.append(None)
            continue
        drawn = draws[~np.isnan(draws)]  # resamples without the class say nothing about it
        deviation = float(np.std(drawn)) if len(drawn) else 0.0
        estimates.append(interval_from_deviation(float(value), deviation, np.array([images])))
    return tuple(estimates)


def _resample(per_image: PixelCounts) -> PixelCounts:
    """Return the counts of RESAMPLES draws of as many images with replacement: (RESAMPLES, K).

    Images without a counted pixel are not drawn.
    """
    rows = np.flatnonzero(per_image.target.sum(1) > 0)
    n, classes = len(rows), per_image.target.shape[1]
    weights = generator(0, RESAMPLING).multinomial(n, np.full(n, 1 / n), RESAMPLES).astype(np.float64)
    sums = []
    for counts in (per_image.target, per_image.predicted, per_image.correct):
        total = np.zeros((RESAMPLES, classes))
        step = max(BLOCK // classes, 1)
        for first in range(0, n, step):
            total += weights[:, first : first + step] @ counts[rows[first : first + step]].astype(np.float64)
        sums.append(total)
    return PixelCounts(*sums)


def _ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> Floats:
    numerator, denominator = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    return np.divide(numerator, denominator, out=np.full(denominator.shape, np.nan), where=denominator > 0)


def _mean(values: Floats) -> Floats:
    """Return the mean over the last axis of the values that are numbers."""
    known = ~np.isnan(values)
    return _ratio(np.where(known, values, 0).sum(-1), known.sum(-1))


def _stack(rows: list[Ints], classes: int) -> Ints:
    return np.stack(rows) if rows else np.zeros((0, classes), np.int64)


def _sum(rows: list[Ints], classes: int) -> Ints:
    return _stack(rows, classes).sum(0)
