"""Few-shot ridge regression in closed form, from frozen features to {-1, 1}^K (section 4.1; details from its code).

Each feature is standardised by the shots' mean and deviation, a constant feature of 100 is appended for the bias, and
the squared error is regularised by 2**10, not divided by the number of shots.

Shapes: n shots, m test images, D features, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.compute.features import Features
from vitkit.data.stateless_rng import generator
from vitkit.evaluate.metrics import Floats, Ints

L2 = 2.0**10
BIAS = 100.0  # so large that its weight is hardly regularised
DEVIATION = 1e-5  # added to each: a constant feature is not divided by zero
SHOTS = (1, 5, 10, 25)
SEEDS = 3
CHOOSING = 0x5407  # makes these draws differ from others of the same seed


@dataclass(frozen=True, kw_only=True)
class FewShotScore:
    shots: int  # of each class
    images: int  # of all classes together
    short: int  # classes with fewer images than that, of which all are used
    accuracies: tuple[float, ...]  # one for each seed
    mean: float
    spread: float | None  # standard deviation over seeds; None with a single one


def few_shot(
    fit: Features, test: Features, classes: int, shots: Sequence[int] = SHOTS, seeds: int = SEEDS
) -> tuple[FewShotScore, ...]:
    scores = []
    available = np.bincount(fit.labels, minlength=classes)
    for number in shots:
        accuracies = []
        for seed in range(seeds):
            chosen = draw_shots(fit.labels, number, seed)
            predictions = fit_ridge(fit.values[chosen], fit.labels[chosen], classes)(test.values).argmax(axis=1)
            accuracies.append(float((predictions == test.labels).mean()))
        scores.append(
            FewShotScore(
                shots=number,
                images=len(chosen),
                short=int((available < number).sum()),
                accuracies=tuple(accuracies),
                mean=float(np.mean(accuracies)),
                spread=float(np.std(accuracies, ddof=1)) if seeds > 1 else None,
            )
        )
    return tuple(scores)


def draw_shots(labels: Ints, shots: int, seed: int) -> Ints:
    """Return the indices of that many images of each class; with the same seed, fewer shots are a subset of more."""
    # a generator per class: the size of one class does not change the draw from another
    return np.concatenate(
        [
            generator(seed, CHOOSING, int(label)).permutation(np.flatnonzero(labels == label))[:shots]
            for label in np.unique(labels)
        ]
    )


@dataclass(frozen=True)
class RidgeRegression:
    mean: Floats  # (D,)
    deviation: Floats  # (D,)
    weights: NDArray[Any]  # (D + 1, K)

    def __call__(self, features: NDArray[Any]) -> Floats:  # (m, D)
        return pad((features - self.mean) / self.deviation) @ self.weights  # (m, K)


def fit_ridge(features: NDArray[Any], labels: Ints, classes: int, l2: float = L2) -> RidgeRegression:
    """Fit features (n, D) and labels (n,) in float64."""
    double = features.astype(np.float64)
    mean, deviation = double.mean(axis=0), double.std(axis=0) + DEVIATION
    padded = pad((double - mean) / deviation)  # (n, D + 1)
    targets = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)  # (n, K)
    ridge = primal if padded.shape[0] >= padded.shape[1] else dual
    return RidgeRegression(mean, deviation, ridge(padded, targets, l2))


def pad(features: Floats) -> Floats:
    return np.hstack([features, np.full((len(features), 1), BIAS)])


def primal(x: Floats, y: Floats, l2: float) -> NDArray[Any]:
    """Solve (X'X + l2·I)⁻¹ X'y, a system of D + 1 equations, for many shots."""
    return np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y)


def dual(x: Floats, y: Floats, l2: float) -> NDArray[Any]:
    """Solve X' (XX' + l2·I)⁻¹ y, n equations for the same weights, for few shots."""
    return x.T @ np.linalg.solve(x @ x.T + l2 * np.eye(x.shape[0]), y)
