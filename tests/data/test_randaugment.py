"""Each RandAugment operation against Pillow, which the originals copied, or where Pillow lacks it against numpy."""

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

from vitkit.data.randaugment import (
    OPERATIONS,
    DrawnOperations,
    affine_maps,
    apply_color_operations,
    cutout_boxes,
    draw_operations,
)
from vitkit.data.warp import sample

MAGNITUDES = (0, 3, 9, 10, 15, 20)
sizes = st.tuples(st.integers(3, 24), st.integers(3, 24))


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colours with noise, few of them near black or white: histograms with gaps, as photos have."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = np.stack([np.sin(5 * x + 3 * y + phase) for phase in rng.uniform(0, 6, 3)], -1)
    return np.clip(120 + 70 * waves + rng.normal(0, 12, waves.shape), 0, 255).astype(np.uint8)


def batch(*images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255


def levels(images: torch.Tensor) -> np.ndarray:
    return images.mul(255).permute(0, 2, 3, 1).numpy()


def change(name: str, images: torch.Tensor, magnitude: float) -> torch.Tensor:
    """Apply the same operation to every image."""
    plan = DrawnOperations(
        operations=np.full((1, len(images)), OPERATIONS.index(name)),
        signs=np.ones((1, len(images))),
        centres=np.full((1, len(images), 2), 0.5),
    )
    return apply_color_operations(images.clone(), plan, magnitude)


def factor(magnitude: float) -> float:
    return 0.1 + 1.8 * magnitude / 10


PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Equalize": lambda image, _: ImageOps.equalize(image),
    "Invert": lambda image, _: ImageOps.invert(image),
    "Posterize": lambda image, m: (
        ImageOps.posterize(image, min(int(m * 0.4), 8))
        if m >= 2.5  # it refuses 0 bits
        else Image.new("RGB", image.size)
    ),
    "Solarize": lambda image, m: ImageOps.solarize(image, int(m * 25.6)),
    "Color": lambda image, m: ImageEnhance.Color(image).enhance(factor(m)),
    "Contrast": lambda image, m: ImageEnhance.Contrast(image).enhance(factor(m)),
    "Brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(factor(m)),
    "Sharpness": lambda image, m: ImageEnhance.Sharpness(image).enhance(factor(m)),
}
EXACT = {"Equalize", "Invert", "Posterize", "Solarize"}  # the rest: Pillow rounds in between, we do not


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("name", PILLOW)
@given(size=sizes, seed=st.integers(0, 99))
def test_colour_operations_equal_pillows(name: str, magnitude: int, size: tuple[int, int], seed: int):
    images = photo(*size, seed), photo(*size, seed + 100)
    ours = levels(change(name, batch(*images), magnitude))
    theirs = np.stack([PILLOW[name](Image.fromarray(image), magnitude) for image in images])
    # Pillow rounds the degenerate image before it extrapolates, for contrast the mean too, and the error grows with it
    rounded = 1.01 if name == "Contrast" else 0.51
    tolerance = 0.01 if name in EXACT else 1 + max(abs(1 - factor(magnitude)), 1) * rounded
    assert np.abs(ours - theirs).max() <= tolerance


@given(size=sizes, seed=st.integers(0, 99))
def test_solarize_add_lightens_the_dark_half(size: tuple[int, int], seed: int):
    image = photo(*size, seed).astype(int)
    expected = np.where(image < 128, np.minimum(image + int(0.9 * 110), 255), image)
    assert np.allclose(levels(change("SolarizeAdd", batch(image.astype(np.uint8)), 9))[0], expected, atol=0.01)


def test_flat_images_stay_unchanged_as_in_pillow():
    for value in (0, 77, 255):
        flat = np.full((8, 8, 3), value, np.uint8)
        for name in ("AutoContrast", "Equalize"):
            assert np.allclose(levels(change(name, batch(flat), 0))[0], PILLOW[name](Image.fromarray(flat), 0))


@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize("name", [*PILLOW, "SolarizeAdd"])
def test_images_of_any_number_of_channels_are_changed_channel_by_channel(name: str, channels: int):
    images = torch.rand(2, channels, 9, 7)
    changed = change(name, images, 9)
    assert changed.shape == images.shape
    assert 0 <= changed.min() <= changed.max() <= 1
    if name == "Color":
        assert torch.equal(changed, images)  # no colours to strengthen
    elif name != "Contrast":  # whose mean is over all channels
        assert torch.allclose(changed[:, :1], change(name, images[:, :1], 9), atol=1e-6)


def drawn(*names: str, sign: float = 1.0, centre: tuple[float, float] = (0.5, 0.5)) -> DrawnOperations:
    """Return a plan for one image with these operations."""
    count = len(names)
    return DrawnOperations(
        operations=np.array([[OPERATIONS.index(name)] for name in names]),
        signs=np.full((count, 1), sign),
        centres=np.tile(centre, (count, 1, 1)),
    )


def warp(images: torch.Tensor, plan: DrawnOperations, magnitude: float) -> torch.Tensor:
    size = images.shape[2], images.shape[3]
    return sample(images, affine_maps(plan, magnitude, size), cutout_boxes(plan, magnitude, size))


def coefficients(name: str, strength: float, width: int, height: int) -> tuple[float, ...]:
    """Return the coefficients of PIL.Image.transform, as in the Pillow versions of RandAugment."""
    return {
        "ShearX": (1, 0.3 * strength, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, 0.3 * strength, 1, 0),
        "TranslateX": (1, 0, strength * 100 * width / 224, 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, strength * 100 * height / 224),
    }[name]


@pytest.mark.parametrize("name", ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"])
@given(size=sizes, magnitude=st.sampled_from([2.9, 8.9, 13.7, 19.3]), sign=st.sampled_from([-1.0, 1.0]))
def test_geometric_operations_equal_pillows_with_grey_outside(
    name: str, size: tuple[int, int], magnitude: float, sign: float
):
    # magnitudes for which no pixel comes from exactly the border, where rounding would decide
    height, width = size
    image = Image.fromarray(photo(height, width))
    ours = levels(warp(batch(np.asarray(image)), drawn(name, sign=sign), magnitude))[0]
    bilinear, strength = Image.Resampling.BILINEAR, sign * magnitude / 10
    if name == "Rotate":
        theirs = image.rotate(30 * strength, bilinear, fillcolor=(128,) * 3)
    else:
        theirs = image.transform(
            image.size,
            Image.Transform.AFFINE,
            coefficients(name, strength, width, height),
            bilinear,
            fillcolor=(128,) * 3,
        )
    assert np.abs(ours - np.asarray(theirs)).max() < 1.01  # Pillow rounds down


def test_two_geometric_operations_are_composed_in_order():
    height, width = 64, 64
    image = batch(photo(height, width))
    image = torch.nn.functional.avg_pool2d(image, 9, 1, 4, count_include_pad=False)  # smooth: two samplings blur little
    once = warp(image, drawn("Rotate", "TranslateX"), 5)
    twice = warp(warp(image, drawn("Rotate"), 5), drawn("TranslateX"), 5)
    assert ((once - twice).abs() < 0.01).float().mean() > 0.95  # the rest is the border, blurred twice
    other = warp(image, drawn("TranslateX", "Rotate"), 5)
    assert ((once - other).abs() < 0.01).float().mean() < 0.8


@given(size=sizes, centre=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)), magnitude=st.sampled_from([0, 9, 20]))
def test_cutout_is_a_grey_square_clipped_at_the_border(
    size: tuple[int, int], centre: tuple[float, float], magnitude: int
):
    height, width = size
    image = warp(torch.zeros(1, 3, *size), drawn("Cutout", centre=centre), magnitude)
    x, y = int(centre[0] * width), int(centre[1] * height)
    reach = int(magnitude / 10 * 40 * min(size) / 224)
    expected = np.zeros(size)
    expected[max(y - reach, 0) : y + reach, max(x - reach, 0) : x + reach] = 0.5
    assert np.array_equal(image[0, 1], expected)


def test_each_image_of_a_batch_gets_its_own_operations_in_order():
    """All 81 pairs at once, against each image alone through Pillow's pair of functions."""
    pairs = [(first, second) for first in PILLOW for second in PILLOW]
    images = [photo(16, 12, seed) for seed in range(len(pairs))]
    plan = DrawnOperations(
        operations=np.array([[OPERATIONS.index(name) for name in pair] for pair in pairs]).T,
        signs=np.ones((2, len(pairs))),
        centres=np.zeros((2, len(pairs), 2)),
    )
    changed = levels(apply_color_operations(batch(*images), plan, 9))
    for (first, second), image, ours in zip(pairs, images, changed, strict=True):
        theirs = np.asarray(PILLOW[second](PILLOW[first](Image.fromarray(image), 9), 9)).astype(float)
        # means, as one level before equalize or posterize can be many after it
        assert np.abs(ours - theirs).mean() < 6, (first, second)


def test_an_image_without_a_colour_operation_is_unchanged():
    image = batch(photo(16, 16))
    assert torch.equal(apply_color_operations(image.clone(), drawn("Rotate", "ShearX"), 9), image)
    assert np.array_equal(affine_maps(drawn("Invert", "Cutout"), 9, (16, 16))[0], np.eye(3))


def test_all_operations_are_equally_likely_and_independent():
    plan = draw_operations(torch.arange(32_000), 2, seed=1, epoch=2)
    operations = plan.operations
    for layer in operations:
        assert stats.chisquare(np.bincount(layer, minlength=16)).pvalue > 1e-4
    assert stats.chisquare(np.bincount(operations[0] * 16 + operations[1], minlength=256)).pvalue > 1e-4
    assert stats.binomtest(int((plan.signs > 0).sum()), 64_000).pvalue > 1e-4
    assert stats.kstest(plan.centres.flatten(), "uniform").pvalue > 1e-4


def test_ranges_are_those_of_the_paper_at_magnitude_ten():
    rotated = affine_maps(drawn("Rotate"), 10, (224, 224))[0]
    assert math.degrees(math.acos(rotated[0, 0])) == pytest.approx(30)
    assert affine_maps(drawn("ShearX"), 10, (224, 224))[0, 0, 1] == pytest.approx(0.3)
    assert affine_maps(drawn("TranslateY"), 10, (224, 224))[0, 1, 2] == pytest.approx(100)
