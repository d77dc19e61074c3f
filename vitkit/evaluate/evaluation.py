"""The result of an evaluation as plain data: evaluation.json of a run folder, which reports are made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from vitkit.data.groups import describe_leaks
from vitkit.errors import ConfigError
from vitkit.stored_json import conform, parse_json, read_bytes
from vitkit.text import counted, interval, percent

MOST_BYTES = 1 << 30  # of evaluation.json: the confusion matrix of thousands of classes is large


class _Rows(TypedDict, total=False):
    """The tables whose rows may have keys of an older version."""

    reliability: list[dict[str, Any]]
    per_class: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A score and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    name: str
    images: int
    recall: float | None  # None: the split has no image of the class
    precision: float | None  # None: the class was never predicted
    f1: float | None
    average_precision: float | None = None  # multi-label only
    threshold: float | None = None  # multi-label only: the probability from which it is predicted; None: one half


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin:
    """A bin of the reliability diagram: the predictions with a confidence in [low, high)."""

    low: float
    high: float
    images: int
    confidence: float  # mean
    accuracy: float  # share of correct predictions


@dataclass(frozen=True, kw_only=True)
class Mistake:
    key: str
    index: int  # in the split
    truth: str
    answer: str  # the prediction
    confidence: float  # probability of the prediction
    of_truth: float  # probability of the truth


@dataclass(frozen=True, kw_only=True)
class LeakedImages:
    """Scored images that are copies of training images, or of their groups, and the scores without them."""

    identical: int
    nearly_identical: int
    grouped: int  # of a group that training images are of, and no copies
    others: int  # images that were scored and are none of these
    top1: Estimate | None = None  # of the others; None without any
    macro_f1: Estimate | None = None
    balanced_accuracy: Estimate | None = None
    mean_average_precision: Estimate | None = None  # multi-label

    @property
    def images(self) -> int:
        return self.identical + self.nearly_identical + self.grouped

    @property
    def headline(self) -> Estimate | None:
        return self.top1 or self.mean_average_precision

    def sentence(self) -> str:
        """Return what follows "of the scored images,": how many have leaked, and the score on the others."""
        leaks, score = describe_leaks(self.identical, self.nearly_identical, self.grouped), self.headline
        if score is None:
            return f"{leaks}; no other image could be scored"
        others = counted(self.others, "other")
        return f"{leaks}; {percent(score.value)} ({interval(score.low, score.high)}) on the {others}"


@dataclass(frozen=True, kw_only=True)
class MappedClasses:
    """A map of classes, by which each class of the data stands for some of the model's (`--map`)."""

    file: str
    model_classes: int  # that stand for a class of the data
    of: int  # all classes of the model
    elsewhere: int  # scored images whose prediction stands for no class of the data


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    data: str
    split: str
    images: int  # scored
    classes: tuple[str, ...]  # of the model; with a map of classes, those of the data that it has
    multilabel: bool
    left_out: Mapping[str, str]  # skipped images: key → why it could not be decoded
    unlabelled: int  # images of the split without a class of the model
    missing: tuple[str, ...]  # classes that only the model has
    extra: tuple[str, ...]  # classes that only the data have
    loss: float | None = None  # mean cross-entropy; None: the data have no classes of their own, only ReaL's
    top1: Estimate | None = None  # single label from here
    top5: Estimate | None = None  # None with five classes or fewer
    macro_f1: Estimate | None = None
    balanced_accuracy: Estimate | None = None
    calibration_error: float | None = None
    mean_average_precision: Estimate | None = None  # multi-label
    real: Estimate | None = None  # ImageNet-ReaL
    mapped: MappedClasses | None = None  # None: classes are matched by their names
    inputs: tuple[str, ...] = ()  # description of the preprocessing; evaluations of earlier versions have none
    reliability: tuple[ReliabilityBin, ...] = ()
    per_class: tuple[ClassScore, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()  # rows: truth, columns: prediction
    mistakes: tuple[Mistake, ...] = ()  # the most confident first
    leaked: LeakedImages | None = None  # None: no copies of training images, or none were looked for

    @property
    def headline(self) -> Estimate:
        chosen = self._main_score
        if chosen is None:
            raise ValueError("this evaluation lacks its main score")
        return chosen

    @property
    def _main_score(self) -> Estimate | None:
        return self.mean_average_precision if self.multilabel else self.top1 or self.real

    def to_json(self) -> str:
        return json.dumps(asdict(self))  # ASCII: file names need not be text

    @classmethod
    def from_json(cls, text: str | bytes, origin: str = "this evaluation") -> Evaluation:
        record = parse_json(text, _Rows, origin, error=ConfigError)
        for row in (record, *record.get("reliability", ()), *record.get("per_class", ())):
            if "pictures" in row:  # as vitkit 0.1.0 wrote it
                row["images"] = row.pop("pictures")
        evaluation: Evaluation = conform(record, cls, origin, error=ConfigError)
        if evaluation._main_score is None:
            raise ConfigError(f"{origin} is damaged: it lacks its main score.")
        return evaluation

    @classmethod
    def read(cls, path: Path) -> Evaluation:
        return cls.from_json(read_bytes(path, error=ConfigError, most=MOST_BYTES), str(path))
