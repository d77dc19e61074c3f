"""Heatmaps: differences that are only rounding stay dark, and tiny images are enlarged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.inspect import reference
from tests.model.kinds import randomise
from vitkit.inspect.heatmaps import enlarge_pixels, outline_patch, overlay, scale_to_unit
from vitkit.inspect.rollout import rollout


def test_a_uniform_image_has_a_dark_heatmap():
    """Without positions, all patches of a uniform image are the same, and so is their attention but for rounding."""
    torch.manual_seed(0)
    model = randomise(vitkit.create("mu/8", image=64, positions="none", depth=6, classes=10).eval())
    weights = rollout(model, torch.full((1, 3, 64, 64), 0.3))[0]
    assert weights.max() == pytest.approx(weights.mean(), rel=1024 * reference.EPS)
    assert scale_to_unit(weights).max() < 0.05
    plain = np.full((64, 64, 3), 90, np.uint8)
    assert np.ptp(overlay(plain, weights).astype(int)) < 10


def test_weights_of_any_magnitude_are_scaled_to_0_to_1():
    weights = np.random.default_rng(0).random((14, 14)).astype(np.float32)
    for size in (1e-6, 1.0, 1e6):
        scaled = scale_to_unit(size * weights)
        assert (scaled.min(), scaled.max()) == (0, 1)
        inside = scaled < 1
        assert np.corrcoef(scaled[inside], weights[inside])[0, 1] == pytest.approx(1)
    assert not scale_to_unit(np.zeros((3, 3), np.float32)).any()
    assert scale_to_unit(np.eye(10, dtype=np.float32)[:1]).max() == 1  # all weight on one patch


def test_tiny_images_are_enlarged_pixel_by_pixel_as_pillow_does():
    pixels = np.random.default_rng(0).integers(0, 256, (28, 20, 3), dtype=np.uint8)
    theirs = Image.fromarray(pixels).resize((160, 224), Image.Resampling.NEAREST)
    np.testing.assert_array_equal(enlarge_pixels(pixels, 230), np.asarray(theirs))
    assert enlarge_pixels(pixels, 10).shape == pixels.shape


def test_a_frame_leaves_the_patch_visible():
    framed = outline_patch(enlarge_pixels(np.full((28, 28, 3), 90, np.uint8), 224), (4, 4), (1, 2))
    assert (framed[56 + 3 : 112 - 3, 112 + 3 : 168 - 3] == 90).all()
    assert (framed[57, 113:167] == 255).all()
