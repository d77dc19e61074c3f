"""The prediction for one image: a probability for each class, or the reason why there is none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitkit.errors import DecodeError

NOT_FINITE = "the model's output is not a number; its weights may be damaged"
THRESHOLD = 0.5  # from which a class of a multi-label model is predicted, where none was chosen


@dataclass(frozen=True)
class Answer:
    label: str
    probability: float
    index: int  # of the class, in the order of the logits


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """A prediction has a `label`, a `probability`, `top(5)` and what is `predicted`, or an `error` instead."""

    labels: tuple[str, ...]
    probabilities: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))  # (K,)
    name: str | None = None  # of the file, if it was one
    error: str | None = None  # why the image could not be read or predicted
    thresholds: tuple[float, ...] | None = None  # of a multi-label model: the probability from which a class applies

    def __post_init__(self) -> None:
        if not np.isfinite(self.probabilities).all():  # nan would come first in every order, and JSON has none
            object.__setattr__(self, "error", NOT_FINITE)

    @property
    def label(self) -> str:
        return self.top(1)[0].label

    @property
    def probability(self) -> float:
        return self.top(1)[0].probability

    def top(self, count: int = 5) -> list[Answer]:
        """Return the most likely classes, the most likely one first; of equal ones, the one with the lower index."""
        if self.error is not None:
            raise DecodeError(f"{self.name or 'the image'}: {self.error}")
        order = np.argsort(-self.probabilities, kind="stable")[:count]
        return [Answer(self.labels[index], float(self.probabilities[index]), int(index)) for index in order]

    @property
    def predicted(self) -> list[Answer]:
        """Return the classes from their thresholds on, maybe none; without thresholds, the most likely class."""
        if self.thresholds is None:
            return self.top(1)
        return [answer for answer in self.top(len(self.labels)) if self.applies(answer)]

    def applies(self, answer: Answer) -> bool:
        """Return whether a class is among those predicted."""
        if self.thresholds is None:
            return answer.index == int(np.argmax(self.probabilities))
        return bool(self.probabilities[answer.index] >= np.float32(self.thresholds[answer.index]))

    def record(self, count: int = 5) -> Mapping[str, Any]:
        """Return a row for JSON; an image that could not be read has a reason and no answers."""
        answers = [] if self.error is not None else [dict(vars(answer)) for answer in self.top(count)]
        row = with_first_answer({"image": self.name, "error": self.error, "answers": answers})
        if self.thresholds is None:
            return row
        labels = [] if self.error is not None else [answer.label for answer in self.predicted]
        return {**row, "predicted": labels}  # of a multi-label model: none or several

    def __repr__(self) -> str:
        if self.error is not None:
            return f"Prediction(error={self.error!r})"
        answers = ", ".join(f"{answer.label} {answer.probability:.1%}" for answer in self.top(3))
        return f"Prediction({answers})"


class StoredAnswer(TypedDict):
    label: str
    probability: float


class StoredRow(TypedDict):
    """A row as journals of older versions hold it; those of a multi-label model have `predicted` as well."""

    image: str
    error: str | None
    answers: list[StoredAnswer]
    label: NotRequired[str | None]
    probability: NotRequired[float | None]
    predicted: NotRequired[list[str]]


def with_first_answer(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the most likely class as `label` and `probability` as well: the form of files and HTTP."""
    first = row["answers"][0] if row["answers"] else {"label": None, "probability": None}
    best = {"label": first["label"], "probability": first["probability"]}
    return {"image": row["image"], "error": row["error"], **best, **row}


def probabilities_of(logits: Tensor, multilabel: bool) -> Tensor:
    """(B, K) → (B, K): softmax for one class per image, sigmoid for each class on its own."""
    return logits.sigmoid() if multilabel else logits.softmax(dim=-1)


def to_probabilities(logits: Tensor, multilabel: bool) -> NDArray[np.float32]:
    """Return probabilities on the host: (B, K) → (B, K)."""
    return probabilities_of(logits, multilabel).cpu().numpy()
