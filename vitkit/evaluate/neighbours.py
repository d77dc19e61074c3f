"""Weighted nearest neighbours: the most similar known pictures vote for their classes (Wu et al. 2018; DINO's 0.07).

Similarity s is the cosine; a vote weighs exp(s / T). Of equally similar pictures the earlier ones are neighbours, of
equal sums of votes the lower class wins. float64: in float32, rounding would break such ties at random.

Shapes: n known pictures, m pictures to answer, k neighbours, D features, K classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluate.metrics import Floats, Ints

NEIGHBOURS = 20
TEMPERATURE = 0.07
ASKED, KNOWN = 512, 16_384  # pictures compared at a time: some 64 MiB tables, however many there are


def classify(
    known: NDArray[Any],
    labels: Ints,
    asked: NDArray[Any],
    classes: int,
    *,
    neighbours: int = NEIGHBOURS,
    temperature: float = TEMPERATURE,
) -> Ints:
    """known (n, D), labels (n,), asked (m, D) → (m,) classes. With fewer pictures than neighbours, all vote."""
    answers = [
        votes(
            *nearest(known, asked[first : first + ASKED], min(neighbours, len(known))), labels, classes, temperature
        ).argmax(axis=1)
        for first in range(0, len(asked), ASKED)
    ]
    return np.concatenate(answers) if answers else np.empty(0, np.int64)


def votes(similarities: Floats, rows: Ints, labels: Ints, classes: int, temperature: float = TEMPERATURE) -> Floats:
    """(m, k) each → (m, K). Added up from the nearest on: equal votes in another order have the same sum."""
    table = np.zeros((len(rows), classes))
    np.add.at(table, (np.arange(len(rows))[:, None], labels[rows]), np.exp(similarities / temperature))
    return table


def nearest(known: NDArray[Any], asked: NDArray[Any], k: int) -> tuple[Floats, Ints]:
    """Similarities and rows of the k nearest, (m, k) each, the nearest first."""
    directions = unit(asked)
    best: Floats = np.empty((len(asked), 0))
    rows: Ints = np.empty((len(asked), 0), np.int64)
    for first in range(0, len(known), KNOWN):
        similarities = directions @ unit(known[first : first + KNOWN]).T
        here = np.broadcast_to(np.arange(first, first + similarities.shape[1]), similarities.shape)
        best, rows = np.hstack([best, similarities]), np.hstack([rows, here])  # earlier pictures stay in front
        places = largest(best, min(k, best.shape[1]))
        best, rows = np.take_along_axis(best, places, axis=1), np.take_along_axis(rows, places, axis=1)
    return best, rows


def largest(table: Floats, k: int) -> Ints:
    """Places of each row's k largest, in falling order; of equals those further left.

    Sorting whole rows would do, at ten times the price; a partition alone leaves it open which of equals it takes.
    """
    least = -np.partition(-table, k - 1, axis=1)[:, k - 1 : k]
    above, level = table > least, table == least
    chosen = above | (level & (level.cumsum(axis=1) <= k - above.sum(axis=1, keepdims=True)))
    places = np.nonzero(chosen)[1].reshape(len(table), k)
    order = np.argsort(-np.take_along_axis(table, places, axis=1), axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)


def unit(features: NDArray[Any]) -> Floats:
    wide = features.astype(np.float64)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
