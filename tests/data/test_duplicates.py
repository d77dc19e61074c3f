"""Near duplicates: every copy that the docstring claims is found, and other images are not."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from tests.data.sample_images import encode, oriented, scene
from vitkit.data.duplicates import CORRELATION, near_duplicates
from vitkit.data.fingerprint import thumbnail

COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "as it is": lambda image: image,
    "a quarter": lambda image: image.resize((image.width // 4, image.height // 4), Image.Resampling.BICUBIC),
    "half": lambda image: image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS),
    "four times": lambda image: image.resize((image.width * 4, image.height * 4), Image.Resampling.BICUBIC),
    "squashed": lambda image: image.resize((128, 128), Image.Resampling.BICUBIC),
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "mirrored and smaller": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).resize(
        (round(image.width * 0.7), round(image.height * 0.7)), Image.Resampling.BICUBIC
    ),
    "grey": lambda image: image.convert("L"),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.9),
}


def photo(seed: int, width: int = 271, height: int = 233) -> Image.Image:
    """Return a random image with as much detail at all sizes as a photo has: noise of 1/f."""
    rng = np.random.default_rng(seed)
    frequencies = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None, :])
    frequencies[0, 0] = 1
    layers = [np.fft.ifft2(np.fft.fft2(rng.normal(size=(height, width))) / frequencies).real for _ in range(3)]
    grey = layers[0]
    colours = np.stack([grey + 0.3 * layer for layer in layers], axis=-1)
    low, high = np.quantile(colours, (0.02, 0.98))
    return Image.fromarray((np.clip((colours - low) / (high - low), 0, 1) * 200 + 20).astype(np.uint8))


def thumbnails(contents: list[bytes]) -> np.ndarray:
    return np.stack([levels for content in contents if (levels := thumbnail(content)) is not None])


def pairs(contents: list[bytes]) -> set[tuple[int, int]]:
    found = near_duplicates(thumbnails(contents))
    return set(zip(found.first.tolist(), found.second.tolist(), strict=True))


@pytest.mark.parametrize("quality", [30, 75, 95, None])
@pytest.mark.parametrize("copy", COPIES)
def test_copies_are_found(copy: str, quality: int | None):
    count = 3 if copy == "four times" else 12
    images = [photo(seed, 301 + 5 * seed, 293 - 3 * seed) for seed in range(count)]
    originals = [encode(image, "JPEG", quality=92) for image in images]
    options = {"format": "PNG"} if quality is None else {"format": "JPEG", "quality": quality}
    copies = [encode(COPIES[copy](image), **options) for image in images]
    assert pairs(originals + copies) == {(index, index + count) for index in range(count)}


def test_other_images_are_no_near_duplicates():
    assert pairs([encode(photo(seed, 90, 80), "PNG") for seed in range(300)]) == set()


def test_pairs_are_those_of_all_correlations_by_numpy():
    """The search by keys finds what a comparison of all pairs finds."""
    rng = np.random.default_rng(0)
    base = thumbnails([encode(photo(seed, 90, 80), "PNG") for seed in range(60)]).astype(int)
    noisy = [
        np.clip(levels + rng.integers(-size, size + 1, levels.shape), 0, 255) for levels in base for size in (2, 8)
    ]
    mirrored = [levels[:, ::-1] for levels in base[:20]]
    levels = np.concatenate([base, noisy, mirrored]).astype(np.uint8)
    flat, flipped = (array.reshape(len(array), -1).astype(float) for array in (levels, levels[:, :, ::-1]))
    best = np.maximum(np.corrcoef(flat), np.corrcoef(flat, flipped)[: len(flat), len(flat) :])
    wanted = {(i, j) for i, j in zip(*np.nonzero(np.triu(best >= CORRELATION, 1)), strict=True)}
    found = near_duplicates(levels)
    assert set(zip(found.first.tolist(), found.second.tolist(), strict=True)) == wanted
    assert len(wanted) > 80
    for first, second, correlation in zip(found.first, found.second, found.correlation, strict=True):
        assert correlation == pytest.approx(best[first, second], abs=1e-9)


def test_images_without_texture_are_not_compared():
    flat = [encode(np.full((40, 40, 3), level, np.uint8), "PNG") for level in (60, 61, 62)]
    assert pairs(flat) == set()


def test_thousands_of_similar_images_have_a_bounded_number_of_pairs():
    rng = np.random.default_rng(0)
    base = thumbnails([encode(photo(5), "PNG")])[0].astype(int)
    frames = np.stack([np.clip(base + rng.integers(-1, 2, base.shape), 0, 255) for _ in range(3000)]).astype(np.uint8)
    found = near_duplicates(frames)
    assert len(np.unique(np.concatenate([found.first, found.second]))) == 3000
    assert len(found) < 3000 * 300


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_thumbnail_is_upright(orientation: int):
    upright = thumbnail(encode(scene(), "PNG"))
    turned = thumbnail(oriented("JPEG", orientation, quality=95))
    assert upright is not None
    assert turned is not None
    assert np.corrcoef(upright.ravel(), turned.ravel())[0, 1] > CORRELATION


@given(width=st.integers(17, 900), height=st.integers(17, 900))
def test_the_thumbnail_of_a_jpeg_decoded_at_a_reduced_size_is_that_of_pillow(width: int, height: int):
    y, x = np.mgrid[:height, :width] / max(height, width)
    grey = 127 + 60 * np.sin(9 * x + 4 * y) + 50 * np.cos(5 * y - 3 * x)
    content = encode(Image.fromarray(grey.astype(np.uint8)), "JPEG", quality=95)
    with Image.open(io.BytesIO(content)) as image:
        expected = np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR)).astype(int)
    levels = thumbnail(content)
    assert levels is not None
    # rounding in both, and the filter of libjpeg's reduced sizes; a shift by a pixel would exceed it
    assert np.abs(levels.astype(int) - expected).max() <= 3


def test_images_of_many_bands_have_thumbnails():
    bands = np.random.default_rng(0).integers(0, 256, (40, 30, 6), dtype=np.uint8)
    file = io.BytesIO()
    np.save(file, bands)
    for content in (bands, file.getvalue()):
        levels = thumbnail(content)
        assert levels is not None
        assert abs(float(levels.mean()) - bands.mean()) < 2
    assert thumbnail(b"no image") is None
