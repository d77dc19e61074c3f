"""Few-shot by least squares, in closed form: from frozen features to {-1, 1}^K (section 4.1; details from its code).

Each feature is standardised by the shots' mean and deviation, a constant feature of 100 is appended for the bias, and
the squared error is regularised by 2**10, not divided by the number of shots.

Shapes: n shots, m pictures to answer, D features, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.order import generator
from vitkit.evaluate.features import Features
from vitkit.evaluate.metrics import Floats, Ints

L2 = 2.0**10
BIAS = 100.0  # so large that its weight is hardly regularised
DEVIATION = 1e-5  # added to each, so that a feature that never changes is not divided by nothing
SHOTS = (1, 5, 10, 25)
SEEDS = 3
CHOOSING = 0x5407  # sets these draws apart from others of the same seed


@dataclass(frozen=True, kw_only=True)
class Shots:
    shots: int  # of each class
    pictures: int  # that is, of all classes
    short: int  # classes with fewer pictures than that, which give all they have
    accuracies: tuple[float, ...]  # one for each seed
    mean: float
    spread: float | None  # standard deviation over seeds; None with a single one


def few_shot(
    fit: Features, test: Features, classes: int, shots: Sequence[int] = SHOTS, seeds: int = SEEDS
) -> tuple[Shots, ...]:
    scores = []
    there = np.bincount(fit.labels, minlength=classes)
    for number in shots:
        accuracies = []
        for seed in range(seeds):
            chosen = choose(fit.labels, number, seed)
            answer = solve(fit.values[chosen], fit.labels[chosen], classes)(test.values).argmax(axis=1)
            accuracies.append(float((answer == test.labels).mean()))
        scores.append(
            Shots(
                shots=number,
                pictures=len(chosen),
                short=int((there < number).sum()),
                accuracies=tuple(accuracies),
                mean=float(np.mean(accuracies)),
                spread=float(np.std(accuracies, ddof=1)) if seeds > 1 else None,
            )
        )
    return tuple(scores)


def choose(labels: Ints, shots: int, seed: int) -> Ints:
    """Indices of that many pictures of each class, or of all it has; fewer shots are among more of the same seed."""
    # a generator of its own for each class: another class's size does not change who is chosen here
    return np.concatenate(
        [
            generator(seed, CHOOSING, int(label)).permutation(np.flatnonzero(labels == label))[:shots]
            for label in np.unique(labels)
        ]
    )


@dataclass(frozen=True)
class Regression:
    mean: Floats  # (D,)
    deviation: Floats  # (D,)
    weights: NDArray[Any]  # (D + 1, K)

    def __call__(self, features: NDArray[Any]) -> Floats:  # (m, D)
        return pad((features - self.mean) / self.deviation) @ self.weights  # (m, K)


def solve(features: NDArray[Any], labels: Ints, classes: int, l2: float = L2) -> Regression:
    """features (n, D), labels (n,); in float64."""
    wide = features.astype(np.float64)
    mean, deviation = wide.mean(axis=0), wide.std(axis=0) + DEVIATION
    padded = pad((wide - mean) / deviation)  # (n, D + 1)
    targets = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)  # (n, K)
    ridge = primal if padded.shape[0] >= padded.shape[1] else dual
    return Regression(mean, deviation, ridge(padded, targets, l2))


def pad(features: Floats) -> Floats:
    return np.hstack([features, np.full((len(features), 1), BIAS)])


def primal(x: Floats, y: Floats, l2: float) -> NDArray[Any]:
    """(X'X + l2·I)⁻¹ X'y: a system of D + 1 equations, for many shots."""
    return np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y)


def dual(x: Floats, y: Floats, l2: float) -> NDArray[Any]:
    """X' (XX' + l2·I)⁻¹ y, the same weights from n equations, for few."""
    return x.T @ np.linalg.solve(x @ x.T + l2 * np.eye(x.shape[0]), y)
