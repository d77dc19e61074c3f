from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitkit.data.resize import resize

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
sizes = st.tuples(st.integers(1, 12), st.integers(1, 12))


@pytest.mark.parametrize("filter", FILTERS)
@given(size=sizes, target=sizes, channels=st.integers(1, 3))
def test_floats_are_resized_as_in_pillow(filter: str, size: tuple[int, int], target: tuple[int, int], channels: int):
    image = torch.randn(1, channels, *size)
    ours = resize(image, target, filter)
    for channel in range(channels):
        pillow = Image.fromarray(image[0, channel].numpy())
        theirs = np.asarray(pillow.resize((target[1], target[0]), FILTERS[filter]))
        np.testing.assert_allclose(ours[0, channel], theirs, atol=1e-5)


@given(size=sizes, target=sizes)
def test_bytes_are_resized_within_one_grey_level_of_pillow(size: tuple[int, int], target: tuple[int, int]):
    image = torch.randint(0, 256, (1, 3, *size), dtype=torch.uint8)
    pillow = Image.fromarray(image[0].permute(1, 2, 0).numpy())
    theirs = np.asarray(pillow.resize((target[1], target[0]), Image.Resampling.BILINEAR)).astype(int)
    ours = resize(image, target, "bilinear")[0].permute(1, 2, 0).numpy().astype(int)
    assert np.abs(ours - theirs).max() <= 1


@pytest.mark.parametrize("rounded", [False, True])
def test_an_image_one_pixel_wide_and_very_high_needs_no_more_memory_than_its_own(rounded: bool):
    """Columns first would need 240 MB for each pass here, and gigabytes for the largest image that is accepted."""
    column = torch.linspace(0, 255, 240_000).round().reshape(1, 1, -1, 1)
    tall = resize(column, (8, 250), "bilinear", bytes=rounded)
    pillow = Image.fromarray(column[0, 0].numpy()).resize((1, 8), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(tall[0, 0], np.repeat(np.asarray(pillow), 250, axis=1), atol=0.5 if rounded else 1e-2)
