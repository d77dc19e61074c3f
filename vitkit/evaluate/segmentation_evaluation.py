"""The result of scoring masks as plain data: evaluation.json of a segmentation run, which its report is made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vitkit.data.groups import describe_leaks
from vitkit.errors import ConfigError
from vitkit.evaluate.evaluation import MOST_BYTES, Estimate, Evaluation
from vitkit.stored_json import conform, parse_json, read_bytes
from vitkit.text import counted, interval, percent

TASK = "segment"


@dataclass(frozen=True, kw_only=True)
class SegmentedClassScore:
    name: str
    images: int  # whose ground-truth mask has the class
    pixels: int  # of the class in ground-truth masks
    predicted: int  # pixels that were predicted to be of the class
    iou: Estimate | None  # None: the class is in no mask, given or predicted
    accuracy: float | None  # share of the class's pixels that were found; None: no ground-truth mask has the class


@dataclass(frozen=True, kw_only=True)
class MaskScore:
    """The scores of one image's mask."""

    key: str
    index: int  # in the split
    mean_iou: float  # over the classes of its masks, given or predicted
    pixel_accuracy: float


@dataclass(frozen=True, kw_only=True)
class LeakedMasks:
    """Scored images that are copies of training images, or of their groups, and the mean IoU without them."""

    identical: int
    nearly_identical: int
    grouped: int  # of a group that training images are of, and no copies
    others: int  # images that were scored and are none of these
    mean_iou: Estimate | None = None  # of the others; None without any

    @property
    def images(self) -> int:
        return self.identical + self.nearly_identical + self.grouped

    def sentence(self) -> str:
        """Return what follows "of the scored images,": how many have leaked, and the score on the others."""
        leaks = describe_leaks(self.identical, self.nearly_identical, self.grouped)
        if self.mean_iou is None:
            return f"{leaks}; no other image could be scored"
        score = f"{percent(self.mean_iou.value)} ({interval(self.mean_iou.low, self.mean_iou.high)})"
        return f"{leaks}; {score} on the {counted(self.others, 'other')}"


@dataclass(frozen=True, kw_only=True)
class SegmentationEvaluation:
    task: Literal["segment"] = "segment"  # what tells this record apart from a classifier's
    data: str
    split: str
    images: int  # scored
    classes: tuple[str, ...]  # of the model, in the order of their numbers
    palette: tuple[tuple[int, int, int], ...] = ()  # a colour for each class
    pixels: int  # scored
    ignored: int  # pixels that the ground-truth masks ignore
    left_out: Mapping[str, str]  # skipped images: key → why the image or its mask could not be read
    unlabelled: int  # images of the split without a mask
    missing: tuple[str, ...] = ()  # classes that only the model has
    extra: tuple[str, ...] = ()  # classes that only the data have
    windows: int = 0  # images that were cut into windows, for they are much larger than the training images
    inputs: tuple[str, ...] = ()  # description of the preprocessing
    mean_iou: Estimate  # over the classes of any mask, given or predicted
    pixel_accuracy: Estimate
    mean_accuracy: Estimate  # of the accuracy of the classes that ground-truth masks have
    per_class: tuple[SegmentedClassScore, ...]
    confusion: tuple[tuple[int, ...], ...]  # pixels; rows: given, columns: predicted
    worst: tuple[MaskScore, ...] = ()  # the images with the lowest mean IoU, the lowest first
    typical: tuple[MaskScore, ...] = ()  # images at even steps from the best to the worst
    leaked: LeakedMasks | None = None  # None: no copies of training images, or none were looked for

    @property
    def headline(self) -> Estimate:
        return self.mean_iou

    def to_json(self) -> str:
        return json.dumps(asdict(self))  # ASCII: file names need not be text

    @classmethod
    def from_json(cls, text: str | bytes, origin: str = "this evaluation") -> SegmentationEvaluation:
        record = parse_json(text, dict[str, Any], origin, error=ConfigError)
        if record.get("task") != TASK:
            raise ConfigError(f"{origin} is not the evaluation of a segmentation model: it lacks its task.")
        evaluation: SegmentationEvaluation = conform(record, cls, origin, error=ConfigError)
        evaluation._check(origin)
        return evaluation

    def _check(self, origin: str) -> None:
        """Raise an error for tables that do not belong to the classes, and for numbers that are none of pixels."""
        classes = len(self.classes)
        if tuple(row.name for row in self.per_class) != self.classes:
            raise ConfigError(f"{origin} is damaged: its table of {len(self.per_class)} rows is not of its classes.")
        if len(self.confusion) != classes or any(len(row) != classes for row in self.confusion):
            raise ConfigError(f"{origin} is damaged: its confusion matrix is not {classes} x {classes}.")
        if self.palette and len(self.palette) != classes:
            raise ConfigError(f"{origin} is damaged: it has {len(self.palette)} colours for {classes} classes.")
        if any(not 0 <= value <= 255 for colour in self.palette for value in colour):
            raise ConfigError(f"{origin} is damaged: the values of its colours are not 0 to 255.")
        counts = (self.images, self.pixels, self.ignored, *(image.index for image in (*self.worst, *self.typical)))
        if not self.classes or min(counts) < 0 or not self.pixels or any(min(row) < 0 for row in self.confusion):
            raise ConfigError(f"{origin} is damaged: it has a count below 0, no pixels or no classes.")

    @classmethod
    def read(cls, path: Path) -> SegmentationEvaluation:
        return cls.from_json(read_bytes(path, error=ConfigError, most=MOST_BYTES), str(path))


def is_segmentation(text: str | bytes) -> bool:
    """Return whether the text of an evaluation.json is that of a segmentation model; a damaged one is not."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.get("task") == TASK


def read_evaluation(path: Path) -> Evaluation | SegmentationEvaluation:
    """Read the evaluation.json of a run, a classifier's or that of a model that segments."""
    content = read_bytes(path, error=ConfigError, most=MOST_BYTES)
    kind = SegmentationEvaluation if is_segmentation(content) else Evaluation
    return kind.from_json(content, str(path))
