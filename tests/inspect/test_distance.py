"""Attention distance against closed forms and plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.inspect import reference
from tests.inspect.test_attention import TRANSFORMERS, all_attention
from tests.model.kinds import images_for, make
from vitkit.inspect.distance import attention_distance, mean_distance, patch_distances, weight_by_distance

grids = st.tuples(st.integers(1, 6), st.integers(1, 6))


@given(grid=grids, stride=st.integers(1, 32), extra=st.integers(0, 1))
def test_uniform_attention_has_the_grids_mean_distance_and_identity_none(grid, stride: int, extra: int):
    tokens = grid[0] * grid[1] + extra
    distances = patch_distances(grid, stride)
    uniform = torch.full((1, 2, tokens, tokens), 1 / tokens)
    mean = reference.mean_distance_of_uniform_attention(grid, stride)
    np.testing.assert_allclose(
        mean_distance(uniform, distances), [[mean, mean]], rtol=128 * reference.EPS, atol=16 * reference.EPS
    )
    assert float(distances.mean()) == pytest.approx(mean, rel=128 * reference.EPS, abs=16 * reference.EPS)
    assert mean_distance(torch.eye(tokens)[None, None], distances).item() == 0


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_distance_equals_plain_numpy(kind: str):
    model = make(kind)
    images = images_for(model)
    config = model.config
    expected = np.array(
        [
            [
                [reference.distance(head, config.grid, config.stride, config.tokens - config.patches) for head in heads]
                for heads in weights
            ]
            for weights in all_attention(model, images)
        ]
    )
    distance = attention_distance(model, images)  # expected: (L, B, H)
    np.testing.assert_allclose(distance.per_image, expected.swapaxes(0, 1), rtol=128 * reference.EPS)
    np.testing.assert_allclose(distance.per_head, expected.mean(axis=1), rtol=128 * reference.EPS)
    np.testing.assert_allclose(distance.per_layer, expected.mean(axis=(1, 2)), rtol=128 * reference.EPS)


def test_many_batches_give_the_same_as_one():
    model = make("non-square, one channel")
    images = images_for(model, 7)
    np.testing.assert_allclose(
        attention_distance(model, images.split(3)).per_head,
        attention_distance(model, images).per_head,
        rtol=16 * reference.EPS,
    )


def test_the_two_attention_layers_of_an_axial_block_are_averaged():
    model = make("axial")
    distance = attention_distance(model, images_for(model))
    rows, columns = distance.per_layer[::2], distance.per_layer[1::2]
    np.testing.assert_allclose(distance.per_block, (rows + columns) / 2, rtol=16 * reference.EPS)
    assert len(distance.per_block) == model.config.depth
    plain = attention_distance(make("token"), torch.randn(1, 3, 32, 32))
    np.testing.assert_array_equal(plain.per_block, plain.per_layer)


def test_attention_to_the_class_token_does_not_count():
    """The distance of a row with nine tenths on the class token is that of the remaining tenth."""
    weights = torch.tensor([[0.9, 0.1, 0.0], [0.9, 0.0, 0.1], [0.9, 0.1, 0.0]])[None, None]
    assert mean_distance(weights, patch_distances((1, 2), 16)).item() == pytest.approx(16)


def test_shares_by_distance_sum_to_1_and_have_the_mean():
    weights = np.zeros((3, 4), dtype=np.float32)
    weights[1, 1], weights[1, 3] = 0.1, 0.3
    shares, mean = weight_by_distance(weights, (1, 1), 8)
    np.testing.assert_allclose(shares[:3], [0.25, 0, 0.75])
    assert shares.sum() == pytest.approx(1)
    assert mean == pytest.approx(12)
    shares, mean = weight_by_distance(np.zeros((2, 2), dtype=np.float32), (0, 0), 8)  # all weight is on the class token
    assert mean == shares.sum() == 0
