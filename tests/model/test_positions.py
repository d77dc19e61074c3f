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
from vitkit.errors import ConfigError, SizeError
from vitkit.model.positions import Relative, sincos_table, sinusoid_table
from vitkit.model.resize_positions import resize_offsets, resize_table, stretch_table

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


@given(grid=grids, target=grids, token=st.booleans())
def test_resized_offsets_are_means_over_pairs_of_scipys_interpolation(
    grid: tuple[int, int], target: tuple[int, int], token: bool
):
    """A loop over all pairs of tokens: each takes its displacement's embedding, each offset the mean of its pairs."""
    (h, w), tokens = grid, target[0] * target[1] + token
    count = 2 * (h * w + token) - 1
    table = torch.randn(count, 2, generator=torch.Generator().manual_seed(count)).double()
    line = table.numpy()
    centre = count // 2
    planes = np.array([[line[centre + y * w + x] for x in range(1 - w, w)] for y in range(1 - h, h)])
    token_to_patch = line[centre + 1 :].reshape(h, w, 2) if token else None
    patch_to_token = line[:centre][::-1].reshape(h, w, 2) if token else None

    def sample(plane: np.ndarray, y: float, x: float) -> np.ndarray:
        points = [[y], [x]]
        return np.array(
            [scipy.ndimage.map_coordinates(plane[..., c], points, order=1, mode="nearest")[0] for c in (0, 1)]
        )

    scale = [(old - 1) / (new - 1) if new > 1 else 0.0 for old, new in zip(grid, target, strict=True)]
    sums, counts = np.zeros((2 * tokens - 1, 2)), np.zeros(2 * tokens - 1)
    down, right = (range(1 - side, side) for side in target)
    for y in down:
        for x in right:
            pairs = (target[0] - abs(y)) * (target[1] - abs(x))
            # a side of one patch has one displacement, 0: it is the first of the old ones, as in scipy's zoom
            position = [
                0.0 if new == 1 and old > 1 else old - 1 + step * factor
                for old, new, step, factor in zip(grid, target, (y, x), scale, strict=True)
            ]
            sums[y * target[1] + x + tokens - 1] += pairs * sample(planes, *position)
            counts[y * target[1] + x + tokens - 1] += pairs
    if token:
        for patch in range(tokens - 1):
            y, x = divmod(patch, target[1])
            place = y * scale[0], x * scale[1]
            sums[tokens + patch] += sample(token_to_patch, *place)
            sums[tokens - 2 - patch] += sample(patch_to_token, *place)
            counts[[tokens + patch, tokens - 2 - patch]] += 1
        sums[tokens - 1] += line[centre]
        counts[tokens - 1] += 1
    ours = resize_offsets(table, grid, target, class_token=token)
    np.testing.assert_allclose(ours, sums / counts[:, None], atol=1e-9)


@given(grid=grids, token=st.booleans(), interpolation=st.sampled_from(["paper", "bicubic"]))
def test_offsets_of_the_same_grid_stay_as_they_are(grid: tuple[int, int], token: bool, interpolation: str):
    table = torch.randn(2 * (grid[0] * grid[1] + token) - 1, 3)
    resized = resize_offsets(table, grid, grid, class_token=token, interpolation=interpolation)
    torch.testing.assert_close(resized, table, atol=0, rtol=2**-23)  # a mean of equal numbers, rounded once


@given(old=st.integers(2, 12), new=st.integers(2, 12), upright=st.booleans())
def test_linear_offsets_along_one_side_stay_linear(old: int, new: int, upright: bool):
    """a + b·o over a line of patches becomes a + b·o·(old - 1) / (new - 1): the ends stay where they are."""
    a, b = 0.25, -1.5
    table = a + b * torch.arange(1 - old, old).double()[:, None]
    grid, target = ((old, 1), (new, 1)) if upright else ((1, old), (1, new))
    expected = a + b * torch.arange(1 - new, new).double()[:, None] * (old - 1) / (new - 1)
    torch.testing.assert_close(resize_offsets(table, grid, target, class_token=False), expected)


@given(rows=st.integers(1, 40), target=st.integers(1, 40))
def test_stretching_equals_numpys_interpolation_along_the_line(rows: int, target: int):
    table = torch.randn(rows, 2).double()
    where = np.linspace(0, rows - 1, target) if target > 1 else np.zeros(1)
    theirs = np.stack([np.interp(where, np.arange(rows), column) for column in table.T.numpy()], axis=1)
    np.testing.assert_allclose(stretch_table(table, target), theirs, atol=1e-12)


@given(tokens=st.integers(1, 7), heads=st.sampled_from([1, 2, 3]))
def test_relative_bias_equals_a_loop_over_pairs(tokens: int, heads: int):
    relative = Relative(grid=(1, tokens), width=4 * heads, heads=heads, class_token=False)
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
    np.testing.assert_allclose(sincos_table((h, w), width, special=0), theirs, atol=1e-6)


def test_sincos_is_computed_anew_for_another_grid():
    model = make("sincos")
    model.resize((32, 24))
    assert torch.equal(model.encoder.positions[0].table, sincos_table((4, 3), 32, special=1))


@given(grid=grids, width=st.sampled_from([2, 6, 16]), token=st.booleans())
def test_sincos1d_equals_the_formula_of_vaswani_in_a_loop(grid: tuple[int, int], width: int, token: bool):
    table = sinusoid_table(grid, width, token)
    assert table.shape == (grid[0] * grid[1] + token, width)
    for position, row in enumerate(table):
        for column in range(width):
            angle = position / 10_000 ** (column // 2 * 2 / width)
            assert row[column] == pytest.approx(math.cos(angle) if column % 2 else math.sin(angle), abs=1e-6)


def test_sincos1d_equals_transformers_distilbert():
    from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings

    theirs = torch.empty(15, 32)
    create_sinusoidal_embeddings(15, 32, theirs)
    torch.testing.assert_close(sinusoid_table((2, 7), 32, special=1), theirs, atol=1e-6, rtol=0)


def test_sincos1d_is_computed_anew_for_another_grid():
    model = make("sincos1d")
    model.resize((32, 24))
    assert torch.equal(model.encoder.positions[0].table, sinusoid_table((4, 3), 32, special=1))
    assert not [name for name, _ in model.encoder.positions.named_parameters()]


@pytest.mark.parametrize(
    "kind",
    [
        "token",
        "relative",
        "relative shared, gap",
        "sincos1d",
        "sincos1d shared, gap",
        "1d every",
        "1d shared",
        "2d",
        "2d every, gap",
        "sincos shared",
        "no positions",
        "axial",
        "root hybrid",
    ],
)
@pytest.mark.parametrize("interpolation", ["paper", "bicubic", "bicubic-no-antialias", "dino"])
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


# Other ways to take positions to another grid


@pytest.mark.parametrize("kind", ["token", "1d every", "axial", "relative", "relative shared, gap"])
def test_a_stretched_model_takes_the_new_size_and_equals_numpys_interpolation(kind: str):
    model = make(kind)
    first = model.encoder.positions[0]
    name, token = ("offsets", 0) if "relative" in kind else ("table", int(model.config.class_token))
    before = getattr(first, name).detach().clone()
    height, width = (side + 2 * model.config.stride for side in model.config.image)
    model.resize((height, width), positions="stretch")
    after = getattr(first, name).detach()
    assert torch.equal(after[:token], before[:token])
    old, new = before[token:], after[token:]
    where = np.linspace(0, len(old) - 1, len(new))
    theirs = np.stack([np.interp(where, np.arange(len(old)), column) for column in old.T.numpy()], axis=1)
    np.testing.assert_allclose(new, theirs, atol=1e-6)
    assert model(images_for(model)).shape == (2, 10)


@pytest.mark.parametrize("kind", ["token", "1d every", "2d every, gap", "relative", "axial"])
@pytest.mark.parametrize("larger", [0, 1])
def test_fresh_positions_are_drawn_anew_and_nothing_else_changes(kind: str, larger: int):
    model = make(kind).requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    size = tuple(side + larger * 16 * model.config.stride for side in model.config.image)
    model.resize(size, positions="fresh")
    for name, tensor in model.state_dict().items():
        if not name.startswith("encoder.positions"):
            assert torch.equal(tensor, before[name])
        elif larger == 0:
            assert not torch.equal(tensor, before[name])
    drawn = torch.cat([tensor.flatten() for tensor in model.encoder.positions.parameters()])
    # the standard error of a standard deviation of n numbers is s / sqrt(2n)
    assert drawn.std() == pytest.approx(0.02, abs=5 * 0.02 / math.sqrt(2 * len(drawn)))
    assert not drawn.requires_grad
    assert model(images_for(model)).shape == (2, 10)


@pytest.mark.parametrize(
    ("kind", "size", "positions", "message"),
    [
        ("token", 64, "keep", r"cannot be kept: the weights have them for 4 x 4 patches, and the image size has 8 x 8"),
        ("relative", (32, 40), "keep", "cannot be kept"),
        ("2d", (32, 40), "stretch", "2-D positions cannot be stretched in 1-D"),
        ("sincos", (32, 40), "stretch", "only learned positions can be stretched in 1-D, and this model has sincos"),
        ("sincos1d", (16, 40), "fresh", "only learned positions can be re-initialised, and this model has sincos1d"),
        ("no positions", 32, "fresh", "this model has none"),
        ("ResNet", 64, "keep", "a ResNet has no positions that could be kept"),
    ],
)
def test_what_does_not_apply_is_refused_and_changes_nothing(kind: str, size: object, positions: str, message: str):
    model = make(kind)
    images, before = images_for(model), model.config
    logits = model(images)
    with pytest.raises((ConfigError, SizeError), match=message):
        model.resize(size, positions=positions)
    assert model.config == before
    assert torch.equal(model(images), logits)


def test_kept_positions_at_the_same_grid_are_the_same():
    model = make("relative")
    logits = model(images := images_for(model))
    model.resize(model.config.image, positions="keep")
    assert torch.equal(model(images), logits)
