"""Polygons to masks and back, against pycocotools."""

from __future__ import annotations

import math

import numpy as np
import pycocotools.mask as coco
import pytest
import scipy.ndimage
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from vitkit.data.masks import dense_extra
from vitkit.data.masks.outlines import outlines
from vitkit.data.masks.polygons import rasterise
from vitkit.errors import DecodeError, VitkitError

coordinates = st.floats(-5, 45, allow_nan=False)
polygons = st.lists(st.lists(coordinates, min_size=6, max_size=20).filter(lambda one: len(one) % 2 == 0), max_size=4)


@given(polygons)
def test_masks_of_polygons_equal_those_of_pycocotools(some: list[list[float]]):
    ours = rasterise(some, (30, 40))
    theirs = coco.decode(coco.merge(coco.frPyObjects(some, 30, 40))) if some else np.zeros((30, 40))
    assert (ours == theirs).all()


@settings(max_examples=300)
@given(arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=14)))
def test_outlines_make_the_same_mask_again(mask: np.ndarray):
    found = outlines(mask)
    assert (rasterise(found, mask.shape) == mask).all()
    assert len(found) == scipy.ndimage.label(mask)[1]  # an area of pixels that share edges each
    assert all(len(polygon) >= 8 for polygon in found)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.7, 0.98])
def test_outlines_of_noise_with_thousands_of_holes_make_the_same_mask_again(share: float):
    mask = np.random.default_rng(0).random((500, 400)) < share
    assert (rasterise(outlines(mask), mask.shape) == mask).all()


def test_a_ring_is_one_polygon_whose_area_has_no_hole_filled():
    mask = np.ones((5, 5), bool)
    mask[1:4, 1:4] = False
    (ring,) = outlines(mask)
    assert coco.area(coco.frPyObjects([ring], 5, 5))[0] == 16


def test_an_empty_mask_has_no_polygon_and_a_full_one_its_corners():
    assert outlines(np.zeros((3, 4), bool)) == []
    assert sorted(zip(*[iter(outlines(np.ones((3, 4), bool))[0])] * 2, strict=True)) == [(0, 0), (0, 3), (4, 0), (4, 3)]


@pytest.mark.parametrize(
    ("polygon", "reason"),
    [
        ([0, 0, 5, 5], "its polygon 2 is not closed: it has 2 points"),
        ([0, 0, 5, 5, 1], "5 numbers: one coordinate is without the other"),
        ([0, 0, 5, "5", 1, 1], "not a list of numbers"),
        ({"x": 1}, "not a list of numbers"),
        ([0, 0, 5, math.nan, 1, 1], "coordinate nan, far outside"),
        ([0, 0, 1e12, 5, 1, 1], "far outside its image of 10 x 10 pixels"),
    ],
)
def test_a_malformed_polygon_is_an_error_with_the_reason(polygon: object, reason: str):
    with pytest.raises(DecodeError, match=reason):
        rasterise([[0, 0, 5, 5, 0, 5], polygon], (10, 10))


def test_without_pycocotools_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dense_extra.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(VitkitError, match=r'pip install "vitkit\[dense\]"'):
        rasterise([[0, 0, 5, 5, 0, 5]], (10, 10))
