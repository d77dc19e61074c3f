"""Weighted k-nearest-neighbour classification (kNN): the most similar training images vote (Wu et al. 2018, DINO's T).

Similarity s is the cosine; a vote weighs exp(s / T). Of equally similar images the earlier ones are neighbours, of
equal sums of votes the lower class wins. float64: in float32, rounding would break such ties at random.

Shapes: n training images, m test images (queries), k neighbours, D features, K classes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluate.metrics import Floats, Ints

NEIGHBOURS = 20
TEMPERATURE = 0.07
QUERY_CHUNK, KNOWN_CHUNK = 512, 16_384  # images compared at a time: tables of some 64 MiB for any n and m


def classify(
    known: NDArray[Any],
    labels: Ints,
    queries: NDArray[Any],
    classes: int,
    *,
    neighbours: int = NEIGHBOURS,
    temperature: float = TEMPERATURE,
) -> Ints:
    """Return the classes (m,) of queries (m, D) from known features (n, D) and labels (n,). If n < k, all vote."""
    predictions = [
        votes(
            *nearest(known, queries[first : first + QUERY_CHUNK], min(neighbours, len(known))),
            labels,
            classes,
            temperature,
        ).argmax(axis=1)
        for first in range(0, len(queries), QUERY_CHUNK)
    ]
    return np.concatenate(predictions) if predictions else np.empty(0, np.int64)


def votes(similarities: Floats, rows: Ints, labels: Ints, classes: int, temperature: float = TEMPERATURE) -> Floats:
    """Return the votes (m, K) of neighbours (m, k), summed from the nearest on, so that equal votes have equal sums."""
    table = np.zeros((len(rows), classes))
    np.add.at(table, (np.arange(len(rows))[:, None], labels[rows]), np.exp(similarities / temperature))
    return table


def nearest(known: NDArray[Any], queries: NDArray[Any], k: int) -> tuple[Floats, Ints]:
    """Return the similarities and rows of the k nearest, (m, k) each, the nearest first."""
    directions = unit(queries)
    best: Floats = np.empty((len(queries), 0))
    rows: Ints = np.empty((len(queries), 0), np.int64)
    for first in range(0, len(known), KNOWN_CHUNK):
        similarities = directions @ unit(known[first : first + KNOWN_CHUNK]).T
        chunk_rows = np.broadcast_to(np.arange(first, first + similarities.shape[1]), similarities.shape)
        best, rows = np.hstack([best, similarities]), np.hstack([rows, chunk_rows])  # earlier images stay in front
        columns = largest(best, min(k, best.shape[1]))
        best, rows = np.take_along_axis(best, columns, axis=1), np.take_along_axis(rows, columns, axis=1)
    return best, rows


def largest(table: Floats, k: int) -> Ints:
    """Return the columns of each row's k largest values in descending order; of equals, those further left.

    Sorting complete rows takes ten times as long; a partition alone does not define which of equals it takes.
    """
    least = -np.partition(-table, k - 1, axis=1)[:, k - 1 : k]
    above, equal = table > least, table == least
    chosen = above | (equal & (equal.cumsum(axis=1) <= k - above.sum(axis=1, keepdims=True)))
    columns = np.nonzero(chosen)[1].reshape(len(table), k)
    order = np.argsort(-np.take_along_axis(table, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)


def unit(features: NDArray[Any]) -> Floats:
    double = features.astype(np.float64)
    return double / np.maximum(np.linalg.norm(double, axis=1, keepdims=True), 1e-12)
