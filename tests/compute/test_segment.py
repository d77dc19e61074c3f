"""Masks of whole images and of windows: geometry, averages, seams, memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.compute.test_upsample import peak_bytes
from vitkit.compute.segment import ComputeMask, check_geometry, exact_scores, trained_size
from vitkit.compute.upsample import softmax
from vitkit.compute.windows import is_large, mask_of_windows, window_grid, window_spans, window_weights
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError

SQUASH = Preprocessing(resize="squash", interpolation="bilinear")


class Brightness(torch.nn.Module):
    """A segmenter whose scores are a function of the pixels under each patch: dark, middle, bright."""

    def __init__(self, patch: int = 4):
        super().__init__()
        self.patch = patch
        self.middle = torch.nn.Parameter(torch.tensor([-0.66, 0.0, 0.66]))

    def forward(self, images: Tensor) -> Tensor:
        level = F.avg_pool2d(images.mean(1, keepdim=True), self.patch)  # (B, 1, h', w')
        return -10 * (level - self.middle[:, None, None].to(images)).square()


def computation(image: tuple[int, int] = (64, 64), size: tuple[int, int] | None = None, **options) -> ComputeMask:
    return ComputeMask(
        scores=exact_scores(Brightness(), torch.device("cpu")),
        transform=EvalTransform(image=image, preprocessing=SQUASH),
        trained_size=size,
        **options,
    )


def stripes(height: int, width: int) -> np.ndarray:
    """Return an image of three broad levels, and its mask."""
    levels = (np.arange(width) * 3 // width).astype(np.uint8)
    mask = np.broadcast_to(levels, (height, width))
    return np.repeat((mask * 85 + 42).astype(np.uint8)[:, :, None], 3, axis=2), mask


def test_the_mask_of_a_whole_image_equals_interpolate():
    pixels, _ = stripes(50, 130)
    compute = computation()
    ours = compute(pixels)
    scores = Brightness()(compute.transform(pixels)[None])
    theirs = F.interpolate(scores, (50, 130), mode="bilinear", align_corners=False)[0].argmax(0).numpy()
    assert np.array_equal(ours.mask, theirs)
    assert (ours.windows, ours.probability) == (1, None)


@pytest.mark.parametrize("size", [(200, 600), (600, 200), (129, 129), (64, 1_000)])
def test_masks_of_windows_follow_the_image(size):
    pixels, mask = stripes(*size)
    compute = computation(size=(64, 64))
    ours = compute(pixels)
    assert ours.windows == compute.windows(size) > 1
    assert (ours.mask == mask).mean() > 0.97  # all but the borders of the stripes


def test_windows_see_what_a_squashed_image_loses():
    pixels = np.zeros((512, 512, 3), np.uint8)
    pixels[100:116, 100:116] = 255  # 2 x 2 pixels of the squashed image, half a patch
    assert computation()(pixels).mask[108, 108] != 2
    assert computation(size=(64, 64))(pixels).mask[108, 108] == 2


@given(st.integers(1, 5_000), st.integers(4, 500))
def test_windows_cover_each_pixel_and_overlap_by_a_quarter(length, window):
    spans = window_spans(length, window)
    assert spans[0][0] == 0
    assert spans[-1][1] == length
    assert len({stop - start for start, stop in spans}) == 1
    for (_, stop), (start, _) in pairwise(spans):
        assert stop - start >= int(window / 4)


@given(st.integers(10, 90), st.integers(10, 90), st.integers(6, 20), st.integers(6, 20), st.integers(3, 999))
@settings(deadline=None, max_examples=50)
def test_windows_in_tiles_equal_the_weighted_mean_of_all(height, width, window_height, window_width, tile):
    random = torch.Generator().manual_seed(height * 100 + width)
    window = (window_height, window_width)
    rows, columns = window_grid((height, width), window)
    scores = {(row, column): torch.randn(3, 4, 5, generator=random) for row in rows for column in columns}
    total, weights = torch.zeros(3, height, width), torch.zeros(height, width)
    for (row, column), grid in scores.items():
        sides = row[1] - row[0], column[1] - column[0]
        weight = window_weights(sides[0], torch.arange(sides[0]))[:, None] * window_weights(
            sides[1], torch.arange(sides[1])
        )
        area = slice(*row), slice(*column)
        total[:, area[0], area[1]] += weight * F.interpolate(grid[None], sides, mode="bilinear")[0]
        weights[area] += weight
    theirs = total / weights

    mask, probability = torch.empty(height, width, dtype=torch.uint8), torch.empty(height, width)
    mask_of_windows(
        (height, width),
        window,
        lambda row, spans: [scores[row, column] for column in spans],
        mask,
        probability,
        softmax,
        tile=tile,
    )
    torch.testing.assert_close(probability, theirs.softmax(0).amax(0), atol=1e-5, rtol=0)
    best = theirs.topk(2, 0).values
    clear = best[0] - best[1] > 1e-5
    assert torch.equal(mask[clear], theirs.argmax(0).byte()[clear])


def test_probabilities_come_where_asked():
    pixels, _ = stripes(40, 90)
    for size in (None, (16, 16)):
        ours = computation(size=size, to_probabilities=softmax)(pixels)
        assert ours.probability is not None
        assert ours.probability.shape == (40, 90)
        assert 1 / 3 <= ours.probability.min() <= ours.probability.max() <= 1


def test_batches_of_windows_change_nothing():
    pixels, _ = stripes(150, 400)
    first, second = (computation(size=(64, 64), batch=batch)(pixels).mask for batch in (1, 5))
    assert np.array_equal(first, second)


def test_an_image_is_cut_above_four_times_the_pixels():
    assert not is_large((200, 200), (100, 100))
    assert is_large((200, 201), (100, 100))
    assert not is_large((5_000, 5_000), None)


def test_memory_of_windows_is_bounded():
    pixels = np.zeros((1_500, 500, 3), np.uint8)
    compute = computation(image=(64, 64), size=(64, 64), tile=1 << 16)
    peak = peak_bytes(lambda: compute(pixels))
    assert peak < 1_500 * 500 * 3  # a quarter of three float32 scores for each pixel


@pytest.mark.parametrize("options", [{"resize": "crop"}, {"resize": "letterbox"}, {"resize": "squash", "crop": 0.9}])
def test_preprocessing_that_cuts_is_declined(options):
    with pytest.raises(ConfigError, match="masks need whole images"):
        check_geometry(Preprocessing(**options))


def test_the_trained_size_comes_from_the_provenance():
    assert trained_size({"trained_size": [360, 480]}) == (360, 480)
    for damaged in ({}, {"trained_size": [0, 4]}, {"trained_size": "a"}, {"trained_size": [1.5, 2]}):
        assert trained_size(damaged) is None
