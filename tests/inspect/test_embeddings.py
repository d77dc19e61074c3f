"""Position embeddings, filters and dense features, compared with plain NumPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from tests.inspect import reference
from tests.model.kinds import images_for, make
from tests.model.reference import table
from vitkit.inspect.dense import dense_colours, dense_features
from vitkit.inspect.embeddings import filter_components, position_similarity, similarity_by_offset, similarity_by_steps
from vitkit.inspect.inference import DoesNotApply


@pytest.mark.parametrize(
    "kind",
    [
        "token",
        "non-square, one channel",
        "gap",
        "1d every",
        "1d shared",
        "2d",
        "2d every, gap",
        "sincos",
        "axial",
        "root hybrid",
    ],
)
def test_similarity_equals_plain_numpy(kind: str):
    model = make(kind)
    config = model.config
    for layer in range(config.depth if config.inject == "every" else 1):
        rows = table(model.state_dict(), config, layer, *config.grid)[int(config.class_token) :].numpy()
        expected = reference.cosine(rows).reshape(*config.grid, *config.grid)
        np.testing.assert_allclose(position_similarity(model, layer), expected, atol=128 * reference.EPS)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no positions", "no position embeddings"),
        ("ResNet", "no positions"),
        ("relative", "belong to pairs of patches"),
    ],
)
def test_models_without_a_position_table_are_declined(kind: str, reason: str):
    with pytest.raises(DoesNotApply, match=reason):
        position_similarity(make(kind))


def test_similarity_curves_are_means_over_pairs():
    rng = np.random.default_rng(0)
    similarity = rng.normal(size=(3, 4, 3, 4)).astype(np.float32)
    pairs = [
        (abs(a - c), abs(b - d), similarity[a, b, c, d])
        for a in range(3)
        for b in range(4)
        for c in range(3)
        for d in range(4)
    ]
    steps, (across, down) = (
        similarity_by_steps(similarity),
        similarity_by_offset((similarity + similarity.transpose(2, 3, 0, 1)) / 2),
    )
    for n in range(6):
        assert steps[n] == pytest.approx(np.mean([s for y, x, s in pairs if y + x == n]), abs=128 * reference.EPS)
    for n in range(4):
        assert across[n] == pytest.approx(
            np.mean([s for y, x, s in pairs if (y, x) == (0, n)]), abs=128 * reference.EPS
        )
    for n in range(3):
        assert down[n] == pytest.approx(np.mean([s for y, x, s in pairs if (y, x) == (n, 0)]), abs=128 * reference.EPS)


@pytest.mark.parametrize("kind", ["token", "five channels", "non-square, one channel"])
def test_filters_equal_the_components_of_scikit_learn(kind: str):
    model = make(kind)
    filters = filter_components(model, 9)
    side, channels = model.config.patch, model.config.channels
    kernels = model.patches.project.weight.detach().reshape(-1, channels, side, side).permute(0, 2, 3, 1)
    theirs = PCA(9, svd_solver="full").fit(kernels.flatten(1).double().numpy())
    assert filters.components.shape == (9, side, side, channels)
    products = np.abs(np.sum(filters.components.reshape(9, -1) * theirs.components_, axis=1))
    np.testing.assert_allclose(products, 1, atol=1024 * reference.EPS)  # but for the sign
    np.testing.assert_allclose(filters.shares, theirs.explained_variance_ratio_, atol=128 * reference.EPS)


@pytest.mark.parametrize("kind", ["hybrid", "ResNet"])
def test_filters_of_a_convolutional_stem_are_the_kernels_of_its_root(kind: str):
    model = make(kind)
    filters = filter_components(model)
    assert filters.components.shape == (28, 7, 7, 3)
    assert filters.layer == "root convolution"
    with torch.no_grad():  # standardised, so a constant on a kernel changes nothing
        (model.body if kind == "ResNet" else model.stem).root.weight.add_(1.0)
    np.testing.assert_allclose(np.abs(filter_components(model).shares), filters.shares, atol=1024 * reference.EPS)


@pytest.mark.parametrize("kind", ["token", "non-square, one channel", "gap", "axial", "post-norm", "hybrid", "ResNet"])
def test_colours_are_the_first_components_of_scikit_learn(kind: str):
    model = make(kind)
    features = dense_features(model, images_for(model, 3))
    colours = dense_colours(features)
    assert colours.shape == (*features.shape[:3], 3)
    assert colours.min() >= 0
    assert colours.max() <= 1
    scores = PCA(3, svd_solver="full").fit_transform(features.reshape(-1, features.shape[-1]).astype(np.float64))
    for ours, theirs in zip(colours.reshape(-1, 3).T, scores.T, strict=True):
        inside = (ours > 0) & (ours < 1)
        assert abs(np.corrcoef(ours[inside], theirs[inside])[0, 1]) > 0.999


def test_a_single_patch_has_a_colour():
    assert dense_colours(np.ones((1, 1, 1, 8), dtype=np.float32)).shape == (1, 1, 1, 3)
