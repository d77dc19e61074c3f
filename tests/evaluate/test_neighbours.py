"""kNN classification equals a plain loop, ties included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier

from vitkit.evaluate import neighbours
from vitkit.evaluate.neighbours import classify


def plain_loop(known: np.ndarray, labels: np.ndarray, queries: np.ndarray, classes: int, k: int) -> list[int]:
    """Classify one image at a time by sorting all similarities; Python's sort keeps the order of equals."""
    predictions = []
    for query in queries.astype(float):
        cosines = [
            float(query @ other) / (np.linalg.norm(query) * np.linalg.norm(other)) for other in known.astype(float)
        ]
        votes = [0.0] * classes
        for row in sorted(range(len(known)), key=lambda row: -cosines[row])[:k]:
            votes[labels[row]] += np.exp(cosines[row] / 0.07)
        predictions.append(votes.index(max(votes)))
    return predictions


def exact(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw vectors of lengths 1 and 2, whose cosines are exact and often equal."""
    table = np.array([*np.eye(4), *-np.eye(4), *([1, a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1))])
    return table[rng.integers(0, len(table), n)].astype(np.float32)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 80), k=st.integers(1, 30), classes=st.integers(1, 5))
def test_ties_of_similarities_and_votes_are_broken_as_documented(seed: int, n: int, k: int, classes: int):
    rng = np.random.default_rng(seed)
    known, queries, labels = exact(rng, n), exact(rng, 17), rng.integers(0, classes, n)
    with pytest.MonkeyPatch.context() as patch:  # ties across the borders of chunks too
        patch.setattr(neighbours, "KNOWN_CHUNK", int(rng.integers(1, 20)))
        patch.setattr(neighbours, "QUERY_CHUNK", 5)
        ours = classify(known, labels, queries, classes, neighbours=k)
    assert ours.tolist() == plain_loop(known, labels, queries, classes, k)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(20, 200))
def test_predictions_equal_a_plain_loop_and_scikit_learn(seed: int, n: int):
    rng = np.random.default_rng(seed)
    known, queries = (rng.normal(size=(rows, 6)).astype(np.float32) for rows in (n, 12))
    labels = rng.integers(0, 4, n)
    ours = classify(known, labels, queries, 4)
    assert ours.tolist() == plain_loop(known, labels, queries, 4, 20)
    theirs = KNeighborsClassifier(20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    assert ours.tolist() == theirs.fit(known.astype(float), labels).predict(queries.astype(float)).tolist()


def test_of_equal_votes_the_lower_class_wins():
    known = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]], dtype=np.float32)
    assert classify(known, np.array([3, 1, 2, 0]), np.array([[1, 1]], np.float32), 4, neighbours=2).tolist() == [1]


def test_a_query_of_zeros_is_classified():
    known = np.array([[0, 0], [1, 0]], dtype=np.float32)
    assert classify(known, np.array([1, 0]), np.zeros((1, 2), np.float32), 2, neighbours=1).tolist() == [1]
    assert classify(known, np.array([1, 0]), np.zeros((0, 2), np.float32), 2).tolist() == []


def test_memory_does_not_grow_with_the_number_of_images(monkeypatch: pytest.MonkeyPatch):
    shapes = []
    real = neighbours.largest
    monkeypatch.setattr(neighbours, "largest", lambda table, k: shapes.append(table.shape) or real(table, k))
    rng = np.random.default_rng(0)
    classify(rng.normal(size=(40_000, 2)), np.zeros(40_000, int), rng.normal(size=(600, 2)), 1)
    assert len(shapes) == 6
    assert max(shapes) <= (neighbours.QUERY_CHUNK, neighbours.KNOWN_CHUNK + 20)
