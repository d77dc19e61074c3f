"""Position embeddings against scipy, Pillow and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.ndimage
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import vitkit
from tests.model.kinds import images_for, make, randomise
from vitkit.errors import ConfigError
from vitkit.model.positions import Relative, resize_table, sincos_table

grids = st.tuples(st.integers(1, 9), st.integers(1, 9))


@given(grid=grids, target=grids)
def test_resizing_as_in_the_paper_equals_scipy_zoom(grid: tuple[int, int], target: tuple[int, int]):
    table = torch.randn(grid[0] * grid[1], 3, generator=torch.Generator().manual_seed(grid[0] * 10 + grid[1]))
    ratio = (target[0] / grid[0], target[1] / grid[1], 1)
    # scipy's default mode reads zeros where rounding puts a sampling point just past the edge; "nearest" does not
    theirs = scipy.ndimage.zoom(table.reshape(*grid, 3).double().numpy(), ratio, order=1, mode="nearest")
    np.testing.assert_allclose(resize_table(table, grid, target), theirs.reshape(-1, 3), atol=1e-6)


@given(grid=grids, target=grids, width=st.integers(1, 3))
def test_bicubic_resizing_equals_pillows_antialiased_one(grid: tuple[int, int], target: tuple[int, int], width: int):
    table = torch.randn(grid[0] * grid[1], width)
    ours = resize_table(table, grid, target, "bicubic").reshape(*target, width)
    for channel in range(width):
        picture = Image.fromarray(table[:, channel].reshape(grid).numpy())
        theirs = np.asarray(picture.resize((target[1], target[0]), Image.Resampling.BICUBIC))
        np.testing.assert_allclose(ours[..., channel], theirs, atol=1e-5)


def test_two_tables_are_resized_along_their_own_side():
    model = randomise(vitkit.create("mu/8", image=(16, 40), positions="2d"))
    table = model.encoder.positions[0]
    rows, columns, token = (value.detach().clone() for value in (table.rows, table.columns, table.token))
    model.resize((32, 56))
    zoom = scipy.ndimage.zoom
    np.testing.assert_allclose(table.rows.detach(), zoom(rows, (4 / 2, 1), order=1), atol=1e-6)
    np.testing.assert_allclose(table.columns.detach(), zoom(columns, (7 / 5, 1), order=1), atol=1e-6)
    assert torch.equal(table.token, token)


def test_relative_positions_refuse_another_grid_and_stay_as_they_were():
    model = make("relative")
    images, before = images_for(model), model.config
    logits = model(images)
    with pytest.raises(ConfigError, match="relative positions cannot be resized"):
        model.resize((32, 40))
    assert model.config == before
    assert torch.equal(model(images), logits)


@given(tokens=st.integers(1, 7), heads=st.sampled_from([1, 2, 3]))
def test_relative_bias_equals_a_loop_over_pairs(tokens: int, heads: int):
    relative = Relative(tokens=tokens, width=4 * heads, heads=heads)
    query = torch.randn(2, heads, tokens, 4)
    bias = relative(query)
    table = relative.offsets.unflatten(1, (heads, 4))
    for i in range(tokens):
        for j in range(tokens):
            expected = (query[:, :, i] * table[j - i + tokens - 1]).sum(-1) / math.sqrt(4)
            torch.testing.assert_close(bias[:, :, i, j], expected)


def test_sincos_equals_big_visions_formula():
    h, w, width = 3, 5, 16
    y, x = np.mgrid[:h, :w]
    omega = np.arange(width // 4) / (width // 4 - 1)
    omega = 1.0 / (10_000**omega)
    y, x = np.einsum("m,d->md", y.flatten(), omega), np.einsum("m,d->md", x.flatten(), omega)
    theirs = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
    np.testing.assert_allclose(sincos_table((h, w), width, class_token=False), theirs, atol=1e-6)


def test_sincos_is_computed_anew_for_another_grid():
    model = make("sincos")
    model.resize((32, 24))
    assert torch.equal(model.encoder.positions[0].table, sincos_table((4, 3), 32, class_token=True))


@pytest.mark.parametrize(
    "kind",
    ["token", "1d every", "1d shared", "2d", "2d every, gap", "sincos shared", "no positions", "axial", "root hybrid"],
)
@pytest.mark.parametrize("interpolation", ["paper", "bicubic"])
def test_a_resized_model_takes_the_new_size(kind: str, interpolation: str):
    model = make(kind)
    height, width = (side + 2 * model.config.stride for side in model.config.image)
    model.resize((height, width), interpolation)
    assert model(torch.randn(2, model.config.channels, height, width)).shape == (2, 10)


def test_a_frozen_table_stays_frozen():
    model = make("token").requires_grad_(False)
    model.resize(64)
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_resizing_there_and_back_on_a_doubled_grid_keeps_the_corners():
    model = make("token")
    corner = model.encoder.positions[0].table[1].detach().clone()
    model.resize(64)
    torch.testing.assert_close(model.encoder.positions[0].table[1], corner)
