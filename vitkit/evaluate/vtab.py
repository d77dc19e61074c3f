"""VTAB-1k's protocol (Zhai et al. 2020) over any list of datasets: 1,000 pictures of each to learn from, one mean.

Of the 1,000, settings are chosen on 200 after fitting on 800; then all of them are fitted, and the whole test split is
scored. The learner here is the linear probe on frozen features.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import numpy as np

from vitkit.data.order import generator
from vitkit.data.partition import partition
from vitkit.data.sources.base import Data, DataError, Split
from vitkit.errors import ConfigError
from vitkit.evaluate import linear
from vitkit.evaluate.evaluation import Estimate
from vitkit.evaluate.features import Features
from vitkit.evaluate.intervals import share
from vitkit.text import few

EXAMPLES = 1000
FIT = 0.8  # of them; the others are for choosing
DRAWING = 0x7AB1  # sets these draws apart from others of the same seed


@dataclass(frozen=True, kw_only=True)
class Task:
    data: str
    classes: int
    fitted: int  # pictures: 1,000, or all there are
    pictures: int  # scored
    l2: float  # chosen
    top1: Estimate


@dataclass(frozen=True, kw_only=True)
class Vtab:
    tasks: tuple[Task, ...]
    mean: float  # of their top-1 accuracies, each task counting the same

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def vtab(extract: Callable[[Split], Features], datasets: Iterable[Data], *, seed: int = 0) -> Vtab:
    tasks = tuple(_task(extract, data, seed) for data in datasets)
    if not tasks:
        raise ConfigError("no dataset named: there is no mean over none")
    return Vtab(tasks=tasks, mean=float(np.mean([task.top1.value for task in tasks])))


def draw(split: Split, seed: int = 0) -> Split:
    """1,000 pictures, whatever their classes, as VTAB has it: a rare class may be missing."""
    return split.select(generator(seed, DRAWING).permutation(len(split))[:EXAMPLES])


def _task(extract: Callable[[Split], Features], data: Data, seed: int) -> Task:
    if data.multilabel:
        raise DataError(
            f"pictures of {data.name} have several labels; each VTAB task has one answer.", found=few(data.classes)
        )
    splits = partition(data)
    if splits.test is None:
        raise DataError(f"{data.name} has nothing to score on.")
    learnt, test = extract(draw(splits.train, seed)), extract(splits.test)
    order, cut = np.arange(len(learnt)), round(FIT * len(learnt))
    classifier, l2, _ = linear.learn(learnt.select(order[:cut]), learnt.select(order[cut:]))
    right = int((classifier.classify(test.values) == test.labels).sum())
    return Task(
        data=data.name,
        classes=len(data.classes),
        fitted=len(learnt),
        pictures=len(test),
        l2=l2,
        top1=share(right, len(test)),
    )
