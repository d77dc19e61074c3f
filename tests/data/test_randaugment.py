"""Each operation against Pillow, which the originals copied; the ones Pillow lacks against a line of numpy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats

from vitkit.data.randaugment import OPERATIONS, Drawn, draw, holes, movement, recolour
from vitkit.data.warp import sample

MAGNITUDES = (0, 3, 9, 10, 15, 20)
sizes = st.tuples(st.integers(3, 24), st.integers(3, 24))


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colours with noise, few of them near black or white: histograms with gaps, as photos have."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = np.stack([np.sin(5 * x + 3 * y + phase) for phase in rng.uniform(0, 6, 3)], -1)
    return np.clip(120 + 70 * waves + rng.normal(0, 12, waves.shape), 0, 255).astype(np.uint8)


def batch(*pictures: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255


def shades(images: torch.Tensor) -> np.ndarray:
    return images.mul(255).permute(0, 2, 3, 1).numpy()


def change(name: str, images: torch.Tensor, magnitude: float) -> torch.Tensor:
    """The same operation for every picture."""
    plan = Drawn(
        kinds=np.full((1, len(images)), OPERATIONS.index(name)),
        signs=np.ones((1, len(images))),
        centres=np.full((1, len(images), 2), 0.5),
    )
    return recolour(images.clone(), plan, magnitude)


def factor(magnitude: float) -> float:
    return 0.1 + 1.8 * magnitude / 10


PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "AutoContrast": lambda picture, _: ImageOps.autocontrast(picture),
    "Equalize": lambda picture, _: ImageOps.equalize(picture),
    "Invert": lambda picture, _: ImageOps.invert(picture),
    "Posterize": lambda picture, m: (
        ImageOps.posterize(picture, min(int(m * 0.4), 8))
        if m >= 2.5  # it refuses 0 bits
        else Image.new("RGB", picture.size)
    ),
    "Solarize": lambda picture, m: ImageOps.solarize(picture, int(m * 25.6)),
    "Color": lambda picture, m: ImageEnhance.Color(picture).enhance(factor(m)),
    "Contrast": lambda picture, m: ImageEnhance.Contrast(picture).enhance(factor(m)),
    "Brightness": lambda picture, m: ImageEnhance.Brightness(picture).enhance(factor(m)),
    "Sharpness": lambda picture, m: ImageEnhance.Sharpness(picture).enhance(factor(m)),
}
EXACT = {"Equalize", "Invert", "Posterize", "Solarize"}  # the rest: Pillow rounds in between, we do not


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("name", PILLOW)
@given(size=sizes, seed=st.integers(0, 99))
def test_colour_operations_are_pillows(name: str, magnitude: int, size: tuple[int, int], seed: int):
    pictures = photo(*size, seed), photo(*size, seed + 100)
    ours = shades(change(name, batch(*pictures), magnitude))
    theirs = np.stack([PILLOW[name](Image.fromarray(picture), magnitude) for picture in pictures])
    # Pillow rounds the plainer picture before it extrapolates, for contrast the mean too, and the error grows with it
    rounded = 1.01 if name == "Contrast" else 0.51
    tolerance = 0.01 if name in EXACT else 1 + max(abs(1 - factor(magnitude)), 1) * rounded
    assert np.abs(ours - theirs).max() <= tolerance


@given(size=sizes, seed=st.integers(0, 99))
def test_solarize_add_lightens_the_dark_half(size: tuple[int, int], seed: int):
    picture = photo(*size, seed).astype(int)
    expected = np.where(picture < 128, np.minimum(picture + int(0.9 * 110), 255), picture)
    assert np.allclose(shades(change("SolarizeAdd", batch(picture.astype(np.uint8)), 9))[0], expected, atol=0.01)


def test_flat_pictures_are_left_alone_where_pillow_leaves_them():
    for value in (0, 77, 255):
        flat = np.full((8, 8, 3), value, np.uint8)
        for name in ("AutoContrast", "Equalize"):
            assert np.allclose(shades(change(name, batch(flat), 0))[0], PILLOW[name](Image.fromarray(flat), 0))


@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize("name", [*PILLOW, "SolarizeAdd"])
def test_pictures_of_any_channel_count_are_treated_channel_by_channel(name: str, channels: int):
    images = torch.rand(2, channels, 9, 7)
    changed = change(name, images, 9)
    assert changed.shape == images.shape
    assert 0 <= changed.min() <= changed.max() <= 1
    if name == "Color":
        assert torch.equal(changed, images)  # no colours to strengthen
    elif name != "Contrast":  # whose mean is over all channels
        assert torch.allclose(changed[:, :1], change(name, images[:, :1], 9), atol=1e-6)


def drawn(*names: str, sign: float = 1.0, centre: tuple[float, float] = (0.5, 0.5)) -> Drawn:
    """One picture with these operations."""
    count = len(names)
    return Drawn(
        kinds=np.array([[OPERATIONS.index(name)] for name in names]),
        signs=np.full((count, 1), sign),
        centres=np.tile(centre, (count, 1, 1)),
    )


def coefficients(name: str, strength: float, width: int, height: int) -> tuple[float, ...]:
    """Of PIL.Image.transform, written out as in the Pillow versions of RandAugment."""
    return {
        "ShearX": (1, 0.3 * strength, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, 0.3 * strength, 1, 0),
        "TranslateX": (1, 0, strength * 100 * width / 224, 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, strength * 100 * height / 224),
    }[name]


@pytest.mark.parametrize("name", ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"])
@given(size=sizes, magnitude=st.sampled_from([2.9, 8.9, 13.7, 19.3]), sign=st.sampled_from([-1.0, 1.0]))
def test_movements_are_pillows_with_grey_outside(name: str, size: tuple[int, int], magnitude: float, sign: float):
    # magnitudes for which no pixel comes from exactly the border, where rounding would decide
    height, width = size
    picture = Image.fromarray(photo(height, width))
    frame = np.array([[0.0, 0.0, width, height]])
    ours = shades(sample(batch(np.asarray(picture)), movement(drawn(name, sign=sign), magnitude, size), frame))[0]
    bilinear, strength = Image.Resampling.BILINEAR, sign * magnitude / 10
    if name == "Rotate":
        theirs = picture.rotate(30 * strength, bilinear, fillcolor=(128,) * 3)
    else:
        theirs = picture.transform(
            picture.size,
            Image.Transform.AFFINE,
            coefficients(name, strength, width, height),
            bilinear,
            fillcolor=(128,) * 3,
        )
    assert np.abs(ours - np.asarray(theirs)).max() < 1.01  # Pillow rounds down


def test_two_movements_are_sampled_as_one_after_the_other():
    height, width = 64, 64
    image = batch(photo(height, width))
    image = torch.nn.functional.avg_pool2d(image, 9, 1, 4, count_include_pad=False)  # smooth: two samplings blur little
    frame = np.array([[0.0, 0.0, width, height]])
    once = sample(image, movement(drawn("Rotate", "TranslateX"), 5, (height, width)), frame)
    twice = sample(image, movement(drawn("Rotate"), 5, (height, width)), frame)
    twice = sample(twice, movement(drawn("TranslateX"), 5, (height, width)), frame)
    assert ((once - twice).abs() < 0.01).float().mean() > 0.95  # the rest is the rim, blurred twice
    other = sample(image, movement(drawn("TranslateX", "Rotate"), 5, (height, width)), frame)
    assert ((once - other).abs() < 0.01).float().mean() < 0.8


@given(size=sizes, centre=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)), magnitude=st.sampled_from([0, 9, 20]))
def test_cutout_is_a_grey_square_clipped_at_the_border(
    size: tuple[int, int], centre: tuple[float, float], magnitude: int
):
    height, width = size
    plan, frame = drawn("Cutout", centre=centre), np.array([[0.0, 0.0, width, height]])
    image = sample(torch.zeros(1, 3, *size), movement(plan, magnitude, size), frame, holes(plan, magnitude, size))
    x, y = int(centre[0] * width), int(centre[1] * height)
    reach = int(magnitude / 10 * 40 * min(size) / 224)
    expected = np.zeros(size)
    expected[max(y - reach, 0) : y + reach, max(x - reach, 0) : x + reach] = 0.5
    assert np.array_equal(image[0, 1], expected)


def test_a_batch_applies_to_each_picture_its_own_operations_in_their_order():
    """All 81 pairs at once, against each picture alone through Pillow's pair of functions."""
    pairs = [(first, second) for first in PILLOW for second in PILLOW]
    pictures = [photo(16, 12, seed) for seed in range(len(pairs))]
    plan = Drawn(
        kinds=np.array([[OPERATIONS.index(name) for name in pair] for pair in pairs]).T,
        signs=np.ones((2, len(pairs))),
        centres=np.zeros((2, len(pairs), 2)),
    )
    changed = shades(recolour(batch(*pictures), plan, 9))
    for (first, second), picture, ours in zip(pairs, pictures, changed, strict=True):
        theirs = np.asarray(PILLOW[second](PILLOW[first](Image.fromarray(picture), 9), 9)).astype(float)
        # means, as one level before equalize or posterize can be many after it
        assert np.abs(ours - theirs).mean() < 6, (first, second)


def test_a_picture_that_drew_no_colour_operation_is_untouched():
    image = batch(photo(16, 16))
    assert torch.equal(recolour(image.clone(), drawn("Rotate", "ShearX"), 9), image)
    assert np.array_equal(movement(drawn("Invert", "Cutout"), 9, (16, 16))[0], np.eye(3))


def test_all_operations_are_equally_likely_in_both_places_and_independent():
    plan = draw(torch.arange(32_000), 2, seed=1, epoch=2)
    kinds = plan.kinds
    for layer in kinds:
        assert stats.chisquare(np.bincount(layer, minlength=16)).pvalue > 1e-4
    assert stats.chisquare(np.bincount(kinds[0] * 16 + kinds[1], minlength=256)).pvalue > 1e-4
    assert stats.binomtest(int((plan.signs > 0).sum()), 64_000).pvalue > 1e-4
    assert stats.kstest(plan.centres.flatten(), "uniform").pvalue > 1e-4


def test_ranges_are_those_of_the_paper_at_magnitude_ten():
    turned = movement(drawn("Rotate"), 10, (224, 224))[0]
    assert math.degrees(math.acos(turned[0, 0])) == pytest.approx(30)
    assert movement(drawn("ShearX"), 10, (224, 224))[0, 0, 1] == pytest.approx(0.3)
    assert movement(drawn("TranslateY"), 10, (224, 224))[0, 1, 2] == pytest.approx(100)
