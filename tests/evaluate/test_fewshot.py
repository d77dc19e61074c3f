"""Few-shot ridge regression in closed form equals scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from vitkit.compute.features import Features
from vitkit.data.sources.dataset import PackedStrings
from vitkit.evaluate.fewshot import draw_shots, dual, few_shot, fit_ridge, pad, primal


def random_data(rng: np.random.Generator, n: int, width: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    values = rng.normal(size=(n, width)) * rng.lognormal(size=width) + rng.normal(size=width)
    return values.astype(np.float32), rng.integers(0, classes, n)


def features(values: np.ndarray, labels: np.ndarray) -> Features:
    return Features(values, labels, PackedStrings(map(str, range(len(values)))))


def as_ridge(values: np.ndarray, labels: np.ndarray, classes: int, queries: np.ndarray) -> np.ndarray:
    """Return the outputs (m, K) of scikit-learn's ridge regression with the paper's settings."""
    mean, deviation = values.astype(float).mean(0), values.astype(float).std(0) + 1e-5
    padded, queries = (np.column_stack([(x - mean) / deviation, np.full(len(x), 100.0)]) for x in (values, queries))
    model = Ridge(alpha=1024, fit_intercept=False, solver="cholesky")
    return model.fit(padded, 2.0 * np.eye(classes)[labels] - 1).predict(queries)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 60), width=st.integers(1, 40), classes=st.integers(2, 6))
def test_outputs_equal_scikit_learns_ridge(seed: int, n: int, width: int, classes: int):
    rng = np.random.default_rng(seed)
    values, labels = random_data(rng, n, width, classes)
    # with one image every deviation is 1e-5, so that other images are far away
    queries = values[rng.integers(0, n, 9)] + rng.normal(size=(9, width)) * values.std(axis=0)
    ours = fit_ridge(values, labels, classes)(queries)
    np.testing.assert_allclose(ours, as_ridge(values, labels, classes, queries), atol=1e-4)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 60), width=st.integers(1, 40))
def test_primal_and_dual_have_the_same_weights(seed: int, n: int, width: int):
    rng = np.random.default_rng(seed)
    x, y = pad(rng.normal(size=(n, width))), rng.choice([-1.0, 1.0], size=(n, 3))
    np.testing.assert_allclose(primal(x, y, 1024.0), dual(x, y, 1024.0), atol=1e-4)


@pytest.mark.parametrize("n", [10, 40])
def test_the_smaller_system_is_solved(n: int, monkeypatch: pytest.MonkeyPatch):
    sizes = []
    real = np.linalg.solve
    monkeypatch.setattr(np.linalg, "solve", lambda a, b: sizes.append(len(a)) or real(a, b))
    fit_ridge(*random_data(np.random.default_rng(0), n, 20, 3), 3)
    assert sizes == [min(n, 21)]


def test_a_constant_feature_and_a_class_without_images_do_no_harm():
    values, labels = random_data(np.random.default_rng(0), 30, 5, 2)
    values[:, 0] = 7
    outputs = fit_ridge(values, labels, 4)(values)
    assert np.isfinite(outputs).all()
    np.testing.assert_allclose(outputs, as_ridge(values, labels, 4, values), atol=1e-4)
    assert set(outputs.argmax(1)) <= {0, 1}


def test_shots_are_drawn_per_class_and_fewer_are_a_subset_of_more():
    labels = np.array([0] * 30 + [2] * 3 + [1] * 30)
    five, ten = draw_shots(labels, 5, seed=1), draw_shots(labels, 10, seed=1)
    assert np.bincount(labels[five]).tolist() == [5, 5, 3]
    assert np.bincount(labels[ten]).tolist() == [10, 10, 3]
    assert len(set(ten)) == 23
    assert set(five) < set(ten)
    assert set(five) != set(draw_shots(labels, 5, seed=2))


def test_mean_and_standard_deviation_are_over_the_seeds():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 8)) * 0.5
    labels = rng.integers(0, 4, 200)
    fit, test = (features((rng.normal(size=(200, 8)) + centres[labels]).astype(np.float32), labels) for _ in range(2))
    one, many = few_shot(fit, test, 4, shots=(1, 25), seeds=3)
    expected = []
    for seed in range(3):
        chosen = draw_shots(fit.labels, 25, seed)
        predictions = as_ridge(fit.values[chosen], fit.labels[chosen], 4, test.values).argmax(1)
        expected.append(float((predictions == test.labels).mean()))
    assert many.accuracies == pytest.approx(expected)
    assert many.mean == pytest.approx(np.mean(expected))
    assert many.spread == pytest.approx(np.std(expected, ddof=1))
    assert (one.shots, one.images, one.short) == (1, 4, 0)
    assert one.mean < many.mean
    (alone,) = few_shot(fit, test, 5, shots=(1000,), seeds=1)
    assert (alone.images, alone.short, alone.spread) == (200, 5, None)
