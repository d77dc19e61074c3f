"""Attention distance against closed forms and plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.inspect import reference
from tests.inspect.test_attention import TRANSFORMERS, whole
from tests.model.kinds import images_for, make
from vitkit.inspect.distance import attention_distance, by_distance, mean_distance, patch_distances

grids = st.tuples(st.integers(1, 6), st.integers(1, 6))


@given(grid=grids, stride=st.integers(1, 32), extra=st.integers(0, 1))
def test_uniform_attention_has_the_grids_mean_distance_and_identity_none(grid, stride: int, extra: int):
    tokens = grid[0] * grid[1] + extra
    apart = patch_distances(grid, stride)
    uniform = torch.full((1, 2, tokens, tokens), 1 / tokens)
    mean = reference.mean_distance_of_uniform_attention(grid, stride)
    np.testing.assert_allclose(mean_distance(uniform, apart), [[mean, mean]], rtol=1e-5, atol=1e-6)
    assert float(apart.mean()) == pytest.approx(mean, rel=1e-5, abs=1e-6)
    assert mean_distance(torch.eye(tokens)[None, None], apart).item() == 0


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_distance_equals_plain_numpy(kind: str):
    model = make(kind)
    images = images_for(model)
    config = model.config
    expected = np.array(
        [
            [
                [reference.distance(head, config.grid, config.stride, int(config.class_token)) for head in heads]
                for heads in weights
            ]
            for weights in whole(model, images)
        ]
    )
    found = attention_distance(model, images)  # expected: (V, B, H)
    np.testing.assert_allclose(found.pictures, expected.swapaxes(0, 1), rtol=1e-5)
    np.testing.assert_allclose(found.heads, expected.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(found.layers, expected.mean(axis=(1, 2)), rtol=1e-5)


def test_many_batches_are_as_one():
    model = make("non-square, one channel")
    images = images_for(model, 7)
    np.testing.assert_allclose(
        attention_distance(model, images.split(3)).heads, attention_distance(model, images).heads, rtol=1e-6
    )


def test_an_axial_layer_counts_once_by_rows_and_columns_together():
    model = make("axial")
    found = attention_distance(model, images_for(model))
    rows, columns = found.layers[::2], found.layers[1::2]
    np.testing.assert_allclose(found.by_depth, (rows + columns) / 2, rtol=1e-6)
    assert len(found.by_depth) == model.config.depth
    plain = attention_distance(make("token"), torch.randn(1, 3, 32, 32))
    np.testing.assert_array_equal(plain.by_depth, plain.layers)


def test_attention_to_the_class_token_does_not_count():
    """A row that gives nine tenths to the class token is as far away as the tenth that is left."""
    weights = torch.tensor([[0.9, 0.1, 0.0], [0.9, 0.0, 0.1], [0.9, 0.1, 0.0]])[None, None]
    assert mean_distance(weights, patch_distances((1, 2), 16)).item() == pytest.approx(16)


def test_shares_by_distance_sum_to_1_and_have_the_mean():
    weights = np.zeros((3, 4), dtype=np.float32)
    weights[1, 1], weights[1, 3] = 0.1, 0.3
    shares, mean = by_distance(weights, (1, 1), 8)
    np.testing.assert_allclose(shares[:3], [0.25, 0, 0.75])
    assert shares.sum() == pytest.approx(1)
    assert mean == pytest.approx(12)
    shares, mean = by_distance(np.zeros((2, 2), dtype=np.float32), (0, 0), 8)  # all of it went to the class token
    assert mean == shares.sum() == 0
