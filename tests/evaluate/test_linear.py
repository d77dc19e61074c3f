"""The linear probe equals scikit-learn's logistic regression."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from tests.evaluate.test_fewshot import features
from vitkit.data.sources.dataset import DataError
from vitkit.evaluate import linear
from vitkit.evaluate.linear import GRID
from vitkit.train.logistic_regression import fit_logistic_regression


def blobs(n: int, seed: int, classes: int = 4, width: int = 10, noise: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    centres = np.random.default_rng(0).normal(size=(classes, width))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    scale = np.logspace(-2, 2, width)  # features of very different sizes
    return ((centres[labels] + noise * rng.normal(size=(n, width))) * scale).astype(np.float32), labels


def as_scikit_learn(values: np.ndarray, labels: np.ndarray, l2: float) -> tuple[StandardScaler, LogisticRegression]:
    scale = StandardScaler().fit(values.astype(float))
    model = LogisticRegression(C=1 / (len(values) * l2), tol=1e-10, max_iter=10_000)
    return scale, model.fit(scale.transform(values.astype(float)), labels)


@pytest.mark.parametrize("l2", [10.0, 0.1, 1e-3, 1e-6])
def test_probabilities_equal_scikit_learns(l2: float):
    values, labels = blobs(300, 1)
    queries, _ = blobs(50, 2)
    scale, theirs = as_scikit_learn(values, labels, l2)
    ours = fit_logistic_regression(values, labels, l2)
    np.testing.assert_allclose(
        ours.logits(queries).softmax(1).numpy(), theirs.predict_proba(scale.transform(queries.astype(float))), atol=1e-3
    )
    assert ours.classify(queries).tolist() == theirs.predict(scale.transform(queries.astype(float))).tolist()


def test_a_warm_start_leads_to_the_same_weights():
    values, labels = blobs(300, 1)
    near = fit_logistic_regression(values, labels, 0.1)
    np.testing.assert_allclose(
        fit_logistic_regression(values, labels, 0.01, start=near).weights,
        fit_logistic_regression(values, labels, 0.01).weights,
        atol=1e-4,
    )


def test_the_best_l2_on_dev_images_is_fitted_on_all():
    fit, dev, test = (features(*blobs(n, seed, width=40, noise=4)) for n, seed in ((60, 1), (400, 2), (300, 3)))
    classifier, l2, trials = linear.fit_linear_probe(fit, dev)
    theirs = []
    for trial in trials:
        scale, model = as_scikit_learn(fit.values, fit.labels, trial.l2)
        theirs.append(model.score(scale.transform(dev.values.astype(float)), dev.labels))
    assert [trial.l2 for trial in trials] == list(GRID)
    np.testing.assert_allclose([trial.accuracy for trial in trials], theirs, atol=0.006)
    assert l2 == GRID[int(np.argmax([trial.accuracy for trial in trials]))]
    assert l2 > 1e-3  # 60 images with 40 noisy features need a strong one
    combined = np.concatenate([fit.values, dev.values]), np.concatenate([fit.labels, dev.labels])
    scale, model = as_scikit_learn(*combined, l2)
    assert (classifier.classify(test.values) == model.predict(scale.transform(test.values.astype(float)))).mean() > 0.99


def test_classes_without_images_are_never_predicted():
    values, labels = blobs(100, 1, classes=3)
    assert set(fit_logistic_regression(values, np.array([1, 4, 7])[labels], 1e-3).classify(values)) == {1, 4, 7}


def test_of_equally_good_l2_the_strongest_is_taken():
    values = np.repeat(np.float32([[-1], [1]]), 10, axis=0)
    separable = features(values, (values[:, 0] > 0).astype(int))
    _, l2, trials = linear.fit_linear_probe(separable, separable)
    assert {trial.accuracy for trial in trials} == {1.0}
    assert l2 == max(GRID)


def test_a_single_image_of_each_class_is_too_few():
    with pytest.raises(DataError, match="3 images, no two of a class"):
        linear.fit_linear_probe(*linear.hold_out_dev(features(np.eye(3, dtype=np.float32), np.arange(3))))


def test_dev_images_are_held_out_of_every_class():
    rest, dev = linear.hold_out_dev(features(*blobs(200, 1)))
    assert len(rest) + len(dev) == 200
    assert not set(rest.keys) & set(dev.keys)
    assert np.abs(np.bincount(dev.labels) / np.bincount([*rest.labels, *dev.labels]) - 0.2).max() < 0.02
