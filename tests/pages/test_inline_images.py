"""Images as data: URLs."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from vitkit.pages.inline_images import THUMBNAIL, inline_image


def decode_data_url(data_url: str | None) -> np.ndarray:
    assert data_url is not None
    with Image.open(io.BytesIO(base64.b64decode(data_url.partition(",")[2]))) as image:
        return np.asarray(image)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((600, 400, 3), (117, THUMBNAIL)),
        ((28, 28, 1), (28, 28)),
        ((500, 500, 6), (THUMBNAIL, THUMBNAIL)),
        ((90, 90, 2), (90, 90)),
    ],
)
def test_large_images_shrink_and_any_number_of_channels_can_be_shown(
    shape: tuple[int, int, int], size: tuple[int, int]
) -> None:
    one = inline_image(np.random.default_rng(0).random(shape, dtype=np.float32) * 255)
    assert (one.width, one.height) == size
    assert decode_data_url(one.data_url).shape[:2] == size[::-1]


def test_small_images_are_lossless() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 48, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode_data_url(inline_image(pixels).data_url), pixels)
