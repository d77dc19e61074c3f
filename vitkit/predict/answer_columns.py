"""The predictions for many images in columns: the most likely classes of each, their probabilities, and errors.

A file of predictions has millions of rows; an object for each class of each row would take longer than the model.

Shapes: n images, K classes, k = top the most likely of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.errors import ConfigError
from vitkit.predict.image_stream import ImageOutputs
from vitkit.predict.prediction import NOT_FINITE, StoredRow
from vitkit.predict.stored_columns import (
    FLOAT32,
    INT32,
    decode_column,
    decode_errors,
    encode_column,
    encode_errors,
)
from vitkit.stored_json import conform


@dataclass(frozen=True, eq=False)
class AnswerColumns:
    """A row for each image; what stands in the row of an image with an error means nothing."""

    classes: NDArray[np.int32]  # (n, k), the most likely first
    probabilities: NDArray[np.float32]  # (n, k)
    errors: Mapping[int, str] = field(default_factory=dict)  # row → why there is no prediction
    predicted: Sequence[Sequence[int]] | None = None  # of a multi-label model: the classes from their thresholds on

    def __len__(self) -> int:
        return len(self.classes)

    @classmethod
    def join(cls, blocks: Sequence[AnswerColumns]) -> AnswerColumns:
        """Return the rows of several blocks as one."""
        firsts = np.cumsum([0, *map(len, blocks)]).tolist()
        return cls(
            np.concatenate([block.classes for block in blocks]),
            np.concatenate([block.probabilities for block in blocks]),
            {
                first + row: error
                for first, one in zip(firsts, blocks, strict=False)
                for row, error in one.errors.items()
            },
            None if blocks[0].predicted is None else [row for block in blocks for row in block.predicted or ()],
        )

    def select(self, first: int, stop: int) -> AnswerColumns:
        """Return the rows from `first` to `stop`."""
        return AnswerColumns(
            self.classes[first:stop],
            self.probabilities[first:stop],
            {row - first: error for row, error in self.errors.items() if first <= row < stop},
            None if self.predicted is None else self.predicted[first:stop],
        )

    def stored(self) -> StoredAnswers:
        """Return the rows as a journal holds them."""
        stored = StoredAnswers(
            images=len(self),
            errors=encode_errors(self.errors),
            classes=encode_column(self.classes, INT32),
            probabilities=encode_column(self.probabilities, FLOAT32),
        )
        if self.predicted is not None:
            stored["predicted"] = [list(row) for row in self.predicted]
        return stored


class StoredAnswers(TypedDict):
    """Rows as a journal holds them, those of a batch."""

    images: int
    errors: list[tuple[int, str]]
    classes: str
    probabilities: str
    predicted: NotRequired[list[list[int]]]


def compute_answers(probabilities: Tensor, top: int, multilabel: bool) -> tuple[Tensor, ...]:
    """(n, K) → classes (n, k), probabilities (n, k), whether all are finite (n, 1), and, if needed, all of them."""
    classes, best = top_classes(probabilities, top)
    finite = probabilities.isfinite().all(dim=1, keepdim=True)
    return classes, best, finite, *([probabilities] if multilabel else [])


def top_classes(probabilities: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """(n, K) → (n, k) classes, int32, and their probabilities; of equal ones, the class with the lower index first.

    The bits of floats that are not negative have the order of the floats, so one integer holds probability and index.
    """
    count = probabilities.shape[1]
    backwards = torch.arange(count - 1, -1, -1, device=probabilities.device)
    keys = probabilities.contiguous().view(torch.int32).long() * count + backwards  # (n, K), all different
    classes = count - 1 - keys.topk(top, dim=1).values % count
    return classes.int(), probabilities.gather(1, classes)


def answer_columns(batch: ImageOutputs, top: int, thresholds: Sequence[float] | None) -> AnswerColumns:
    """Return what `compute_answers` has computed for a batch."""
    finite = batch.column(2, 1, np.bool_, missing=True)[:, 0]
    errors = {**batch.errors, **{int(row): NOT_FINITE for row in np.flatnonzero(~finite)}}
    predicted = None
    if thresholds is not None:
        probabilities = batch.column(3, len(thresholds), np.float32, missing=np.nan)
        predicted = [
            [] if row in errors else above[np.argsort(-values[above], kind="stable")].tolist()
            for row, values in enumerate(probabilities)
            for above in [np.flatnonzero(values >= np.asarray(thresholds, np.float32))]
        ]
    return AnswerColumns(batch.column(0, top, np.int32), batch.column(1, top, np.float32), errors, predicted)


def read_answers(stored: Mapping[str, Any], labels: Sequence[str], top: int, multilabel: bool) -> AnswerColumns:
    """Return rows of a journal, or raise a VitkitError for damaged ones; older versions wrote a line for each image."""
    if "answers" in stored:
        return _old_row(conform(stored, StoredRow, "a row"), labels, top, multilabel)
    block: StoredAnswers = conform(stored, StoredAnswers, "a row")
    images, predicted = block["images"], block.get("predicted")
    if images < 1 or (predicted is not None) != multilabel or len(predicted or ()) not in (0, images):
        raise ConfigError("a block of a journal lacks rows")
    columns = AnswerColumns(
        decode_column(block["classes"], (images, top), INT32),
        decode_column(block["probabilities"], (images, top), FLOAT32),
        decode_errors(block["errors"], images),
        predicted,
    )
    known = columns.classes.min() >= 0 and columns.classes.max() < len(labels)
    if not known or not all(0 <= number < len(labels) for row in predicted or () for number in row):
        raise ConfigError(f"a class is not one of {len(labels)}")
    return columns


def _old_row(row: StoredRow, labels: Sequence[str], top: int, multilabel: bool) -> AnswerColumns:
    answers, error = row["answers"], row["error"]
    names = [answer["label"] for answer in answers]
    if not {*names, *row.get("predicted", ())} <= {*labels} or len(answers) != (0 if error is not None else top):
        raise ConfigError("a row does not have the classes of the model")
    classes, probabilities = np.zeros((1, top), np.int32), np.zeros((1, top), np.float32)
    if error is None:
        classes[0] = [_class_of(answer, labels) for answer in answers]
        probabilities[0] = [answer["probability"] for answer in answers]
    predicted = [[labels.index(name) for name in row.get("predicted", ())]] if multilabel else None
    return AnswerColumns(classes, probabilities, {} if error is None else {0: error}, predicted)


def _class_of(answer: Mapping[str, Any], labels: Sequence[str]) -> int:
    """Return the index of a class; where several have one name, the row says which."""
    index = answer.get("index")
    if isinstance(index, int) and 0 <= index < len(labels) and labels[index] == answer["label"]:
        return index
    return labels.index(answer["label"])
