"""VTAB-1k's protocol (Zhai et al. 2020) over any list of datasets: 1,000 training images of each, one mean accuracy.

Of the 1,000, settings are chosen on 200 after fitting on 800; then all of them are fitted, and the complete test split
is scored. The classifier is the linear probe on frozen features.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import numpy as np

from vitkit.compute.features import Features
from vitkit.data.groups import keep_together
from vitkit.data.partition import partition
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.subset import draw_images
from vitkit.errors import ConfigError
from vitkit.evaluate import linear
from vitkit.evaluate.evaluation import Estimate
from vitkit.evaluate.intervals import proportion
from vitkit.text import few

EXAMPLES = 1000
FIT = 0.8  # share of them that is fitted; the others are for choosing


@dataclass(frozen=True, kw_only=True)
class VtabTask:
    """The score of a linear probe on a task."""

    data: str
    classes: int
    fitted: int  # images: 1,000, or all of the split
    images: int  # scored
    l2: float  # chosen
    top1: Estimate


@dataclass(frozen=True, kw_only=True)
class VtabResult:
    tasks: tuple[VtabTask, ...]
    mean: float  # of their top-1 accuracies; every task has the same weight

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def vtab(extract: Callable[[Split], Features], datasets: Iterable[Data], *, seed: int = 0) -> VtabResult:
    tasks = tuple(probe_task(extract, data, seed) for data in datasets)
    if not tasks:
        raise ConfigError("VTAB needs at least one dataset; none was named")
    return VtabResult(tasks=tasks, mean=float(np.mean([task.top1.value for task in tasks])))


def probe_task(
    extract: Callable[[Split], Features], data: Data, seed: int = 0, *, examples: int = EXAMPLES
) -> VtabTask:
    """Fit a linear layer on the frozen features of 1,000 training images, and score it on the test split."""
    if data.multilabel:
        raise DataError(
            f"images of {data.name} have several labels; a VTAB task has one label per image.", found=few(data.classes)
        )
    splits = partition(keep_together(data).data)
    if splits.test is None:
        raise DataError(f"{data.name} has no images to score.")
    train, test = extract(draw_images(splits.train, examples, seed)), extract(splits.test)
    fitted = np.arange(len(train)) < round(FIT * len(train))
    if train.groups is not None:  # no image to choose by is a copy of one that is fitted
        fitted = np.isin(train.groups, train.groups[fitted])
    classifier, l2, _ = linear.fit_linear_probe(
        train.select(np.flatnonzero(fitted)), train.select(np.flatnonzero(~fitted))
    )
    correct = int((classifier.classify(test.values) == test.labels).sum())
    return VtabTask(
        data=data.name,
        classes=len(data.classes),
        fitted=len(train),
        images=len(test),
        l2=l2,
        top1=proportion(correct, len(test)),
    )
