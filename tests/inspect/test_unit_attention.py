"""Attention of ResNets on the page of `vitkit inspect`, against loops over pairs of pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.model.kinds import RESNETS_WITH_ATTENTION, images_for, make
from vitkit.inspect.figures import draw_attention
from vitkit.inspect.image_set import open_images
from vitkit.inspect.inference import DoesNotApply
from vitkit.inspect.inspection import inspect_model
from vitkit.inspect.page import write_page
from vitkit.inspect.unit_attention import unit_attention, unit_layers
from vitkit.model.local_attention import LocalAttention


@pytest.mark.parametrize("kind", RESNETS_WITH_ATTENTION)
def test_maps_and_distances_are_sums_over_pairs_of_pixels(kind: str):
    model = make(kind)
    images = images_for(model)
    maps, distance = unit_attention(model, images)
    layers = unit_layers(model)
    _, seen = model(images, capture=[layer.capture_name for layer in layers])
    assert [layer.capture_name for layer in layers] == [name for name in model.captures if name.endswith("attention")]
    for index, layer in enumerate(layers):
        weights, module = seen[layer.capture_name].detach().double().numpy(), layer.module(model)
        (h, w), side = module.grid, model.config.image[0] // module.grid[0]
        received, far = np.zeros((module.heads, h, w)), np.zeros(module.heads)
        for y, x in np.ndindex(h, w):  # the query
            for a, b in np.ndindex(h, w):  # the key
                share = weight_between(weights[1], (y, x), (a, b), module, layer.axis)
                received[:, a, b] += share / (h * w)
                far += share * side * np.hypot(a - y, b - x) / (h * w)
        times = maps.shape[3] // h
        np.testing.assert_allclose(maps[1, index], received.repeat(times, 1).repeat(times, 2), atol=1e-5)
        np.testing.assert_allclose(distance.per_image[1, index], far, rtol=1e-4)
        np.testing.assert_allclose(received.sum((1, 2)), 1, rtol=1e-5)


def weight_between(weights: np.ndarray, query: tuple, key: tuple, module: object, axis: str) -> np.ndarray:
    """The weights (H,) that a query gives a key, by where each kind of attention has them."""
    (y, x), (a, b) = query, key
    none = np.zeros(module.heads)
    if axis == "rows":
        return weights[y, :, x, b] if a == y else none
    if axis == "columns":
        return weights[x, :, y, a] if b == x else none
    w = module.grid[1]
    if isinstance(module, LocalAttention):
        radius = module.window // 2
        near = max(abs(a - y), abs(b - x)) <= radius
        return weights[:, y * w + x, (a - y + radius) * module.window + b - x + radius] if near else none
    return weights[:, y * w + x, a * w + b]


def test_columns_and_rows_of_an_axial_layer_are_both_named_above_their_maps():
    labels = [layer.label for layer in unit_layers(make("axial ResNet"))]
    assert {"columns", "rows"} <= {label.split()[1] for label in labels}
    maps = np.random.default_rng(0).random((len(labels), 2, 8, 8), dtype=np.float32)
    (axes,) = draw_attention(maps, labels, [0, 1]).axes
    assert [tick.get_text().split() for tick in axes.get_xticklabels()] == [label.split() for label in labels]


@pytest.mark.parametrize("kind", ["bottleneck attention", "axial ResNet"])
def test_the_page_shows_attention_of_the_units_and_says_what_does_not_apply(kind: str, tmp_path: Path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for index in range(2):
        pixels = torch.randint(0, 256, (50, 60, 3), dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(photos / f"{index}.png")
    model = make(kind)
    inspection = inspect_model(model, open_images(model, [photos]))
    files = write_page(inspection, tmp_path / "out", "weights")
    page = files[0].read_text(encoding="utf-8")
    assert "<h2>Attention distance</h2>" in page
    assert "Attention maps, layer by layer" in page
    assert "Rollout and relevance: convolutions mix pixels" in page
    assert {"attention-1-mean.png", "attention-2-mean.png", "distance.png"} <= {file.name for file in files}
    with pytest.raises(DoesNotApply, match="all of its attention layers"):
        inspect_model(model, open_images(model, [photos]), heads=[0])
