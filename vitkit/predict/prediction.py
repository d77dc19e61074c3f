"""What a model answers to one picture: a probability for each class, or why there is no answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import DecodeError


@dataclass(frozen=True)
class Answer:
    label: str
    probability: float
    index: int  # place among the model's classes


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """`prediction.label`, `prediction.probability`, `prediction.top(5)`; with `error` instead, where there is none."""

    labels: tuple[str, ...]
    probabilities: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))  # (K,)
    name: str | None = None  # of the file, where it was one
    error: str | None = None  # why the picture could not be read, or has no answer

    def __post_init__(self) -> None:
        if not np.isfinite(self.probabilities).all():  # would come first in every order, and JSON has no word for it
            object.__setattr__(self, "error", "the model answers with what is no number; its weights may be damaged")

    @property
    def label(self) -> str:
        return self.top(1)[0].label

    @property
    def probability(self) -> float:
        return self.top(1)[0].probability

    def top(self, count: int = 5) -> list[Answer]:
        """The likeliest classes first; of equal ones, the earlier."""
        if self.error is not None:
            raise DecodeError(f"{self.name or 'the picture'}: {self.error}")
        order = np.argsort(-self.probabilities, kind="stable")[:count]
        return [Answer(self.labels[index], float(self.probabilities[index]), int(index)) for index in order]

    def record(self, count: int = 5) -> Mapping[str, Any]:
        """For JSON; a picture that could not be read has a reason and no answers."""
        answers = [] if self.error is not None else [asdict(answer) for answer in self.top(count)]
        return {"picture": self.name, "error": self.error, "answers": answers}

    def __repr__(self) -> str:
        if self.error is not None:
            return f"Prediction(error={self.error!r})"
        words = ", ".join(f"{answer.label} {answer.probability:.1%}" for answer in self.top(3))
        return f"Prediction({words})"
