"""Maps as light: what is rounding stays dark, and tiny pictures have room."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.model.kinds import randomise
from vitkit.inspect.rasters import enlarged, lit, outlined, unit
from vitkit.inspect.rollout import rollout


def test_a_picture_without_any_difference_does_not_glow():
    """Without positions, all patches of a plain picture are the same, and so is what falls on them but for rounding."""
    torch.manual_seed(0)
    model = randomise(vitkit.create("mu/8", image=64, positions="none", depth=6, classes=10).eval())
    weights = rollout(model, torch.full((1, 3, 64, 64), 0.3))[0]
    assert weights.max() == pytest.approx(weights.mean(), rel=1e-4)
    assert unit(weights).max() < 0.05
    plain = np.full((64, 64, 3), 90, np.uint8)
    assert np.ptp(lit(plain, weights).astype(int)) < 10


def test_what_stands_out_is_drawn_from_0_to_1_whatever_its_size():
    weights = np.random.default_rng(0).random((14, 14)).astype(np.float32)
    for size in (1e-6, 1.0, 1e6):
        found = unit(size * weights)
        assert (found.min(), found.max()) == (0, 1)
        inside = found < 1
        assert np.corrcoef(found[inside], weights[inside])[0, 1] == pytest.approx(1)
    assert not unit(np.zeros((3, 3), np.float32)).any()
    assert unit(np.eye(10, dtype=np.float32)[:1]).max() == 1  # one patch has it all


def test_tiny_pictures_are_enlarged_pixel_by_pixel_as_pillow_does():
    pixels = np.random.default_rng(0).integers(0, 256, (28, 20, 3), dtype=np.uint8)
    theirs = Image.fromarray(pixels).resize((160, 224), Image.Resampling.NEAREST)
    np.testing.assert_array_equal(enlarged(pixels, 230), np.asarray(theirs))
    assert enlarged(pixels, 10).shape == pixels.shape


def test_a_frame_leaves_the_patch_to_be_seen():
    framed = outlined(enlarged(np.full((28, 28, 3), 90, np.uint8), 224), (4, 4), (1, 2))
    assert (framed[56 + 3 : 112 - 3, 112 + 3 : 168 - 3] == 90).all()
    assert (framed[57, 113:167] == 255).all()
