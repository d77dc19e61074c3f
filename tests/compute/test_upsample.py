"""Upsampled scores equal F.interpolate's, and tiles of any size give the same mask, bit for bit."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from vitkit.compute.upsample import (
    TILE,
    shares,
    softmax,
    tiles,
    upsample_mask,
    upsample_mask_and_probability,
    upsample_tile,
)

sides, cells = st.integers(1, 70), st.integers(1, 12)


def random_scores(classes: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(classes, height, width, generator=torch.Generator().manual_seed(seed))


@given(st.tuples(sides, sides), st.tuples(cells, cells), st.integers(1, 7))
@settings(deadline=None)
def test_upsampled_scores_equal_interpolate(size, grid, classes):
    scores = random_scores(classes, *grid)
    theirs = F.interpolate(scores[None], size, mode="bilinear", align_corners=False)[0]
    ours = upsample_tile(scores, size, (0, size[0]), (0, size[1]))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@given(st.tuples(sides, sides), st.tuples(cells, cells), st.integers(1, 7), st.integers(1, 2_000))
@settings(deadline=None)
def test_tiles_change_no_bit(size, grid, classes, tile):
    scores = random_scores(classes, *grid)
    whole = upsample_tile(scores, size, (0, size[0]), (0, size[1]))
    mask, probability = upsample_mask_and_probability(scores, size, softmax, tile=tile)
    assert torch.equal(mask, whole.argmax(0).byte())
    assert torch.equal(upsample_mask(scores, size, tile=tile), mask)
    torch.testing.assert_close(probability, whole.softmax(0).amax(0))


@given(st.tuples(st.integers(1, 500), st.integers(1, 500)), st.integers(1, 254), st.integers(254, 10_000))
def test_tiles_cover_each_pixel_once_and_keep_to_the_bound(size, classes, tile):
    counts = torch.zeros(size)
    for (top, bottom), (left, right) in tiles(classes, size, tile):
        assert classes * (bottom - top) * (right - left) <= tile
        counts[top:bottom, left:right] += 1
    assert bool((counts == 1).all())


def test_half_precision_scores_are_upsampled_in_float32():
    scores = random_scores(5, 4, 4).bfloat16()
    assert torch.equal(upsample_mask(scores, (37, 41)), upsample_mask(scores.float(), (37, 41)))


def test_of_equal_scores_the_lower_class_wins():
    assert upsample_mask(torch.zeros(3, 2, 2), (5, 5)).max() == 0


def test_shares_are_scores_divided_by_their_sum():
    scores = torch.tensor([0.6, 0.2, 0.4]).view(3, 1, 1)
    torch.testing.assert_close(shares(scores).flatten(), torch.tensor([0.5, 1 / 6, 1 / 3]))
    assert shares(torch.zeros(3, 1, 1)).tolist() == [[[0.0]]] * 3


@pytest.mark.parametrize("size", [(3_000, 4_000), (1, 2_000_000)])
def test_memory_does_not_grow_with_the_image(size):
    scores = random_scores(21, 14, 14)
    bound = 4 * TILE * 4 + size[0] * size[1] * 8
    assert peak_bytes(lambda: upsample_mask(scores, size)) < bound < 21 * size[0] * size[1] * 4


def peak_bytes(function) -> int:
    """Return the most memory that torch's CPU allocator held at a time for this function."""
    from torch.profiler import ProfilerActivity, profile

    assert not tracemalloc.is_tracing()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function()
    held = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak
