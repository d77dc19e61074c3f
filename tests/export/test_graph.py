"""The geometry as two matrices equals EvalTransform, Pillow and Python's own rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.data.test_transforms import with_pillow
from vitkit.data.geometry import geometry
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.transforms import EvalTransform
from vitkit.export.graph import axes, filter_weights, resize_batch

GREY_LEVELS = 2e-3  # of 255; far below what a byte can tell

images = st.sampled_from([(1, 1), (8, 8), (16, 40), (24, 7), (33, 32)])
crops = st.sampled_from([1.0, 0.95, 0.875, 0.5])
chains = st.builds(
    Preprocessing,
    resize=st.sampled_from(["crop", "squash", "letterbox"]),
    crop=crops,
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
    mean=st.just((0.4, 0.5, 0.6)),
    std=st.just((0.2, 0.3, 0.4)),
    rounding=st.sampled_from(["vitkit", "timm", "transformers"]),
)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@given(
    height=st.integers(1, 130),
    width=st.integers(1, 130),
    image=images,
    preprocessing=chains,
    channels=st.sampled_from([1, 3, 5]),
)
@example(height=8, width=8, image=(8, 8), preprocessing=Preprocessing(), channels=3)
@example(height=1, width=1, image=(16, 40), preprocessing=Preprocessing(resize="letterbox"), channels=3)
def test_two_products_equal_the_eval_transform(height, width, image, preprocessing, channels):
    pixels = noise(height, width, channels)
    framed = resize_batch(torch.from_numpy(pixels)[None], image, preprocessing)[0]
    assert_same(framed, EvalTransform(image=image, preprocessing=preprocessing).resize_only(pixels), GREY_LEVELS)


def assert_same(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> None:
    """Compare values on 0 to 255; bytes may be rounded to other neighbours, now and then, where sums end at a half."""
    apart = (one - other).abs()
    assert apart.max() <= 1 + tolerance
    assert (apart > tolerance).float().mean() <= 0.01 or (apart > tolerance).sum() <= 2


@given(
    long=st.integers(500, 20_000), short=st.integers(1, 3), upright=st.booleans(), image=images, preprocessing=chains
)
def test_very_long_images_are_trimmed_alike(long, short, upright, image, preprocessing):
    pixels = noise(long, short, 1) if upright else noise(short, long, 1)
    framed = resize_batch(torch.from_numpy(pixels)[None], image, preprocessing)[0]
    rounding = 10 * GREY_LEVELS  # each is a sum of thousands in float32; another end would differ by whole grey levels
    assert_same(framed, EvalTransform(image=image, preprocessing=preprocessing).resize_only(pixels), rounding)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("resize", ["crop", "squash", "letterbox"])
@pytest.mark.parametrize("size", [(375, 500), (224, 224), (50, 60), (1200, 900)])
def test_photo_sizes_at_224_pixels(size, resize, interpolation):
    preprocessing = Preprocessing(resize=resize, interpolation=interpolation, crop=0.875)
    pixels = noise(*size, 3)
    framed = resize_batch(torch.from_numpy(pixels)[None], (224, 224), preprocessing)[0]
    torch.testing.assert_close(
        framed,
        EvalTransform(image=(224, 224), preprocessing=preprocessing).resize_only(pixels),
        atol=GREY_LEVELS,
        rtol=0,
    )


@given(height=st.integers(1, 70), width=st.integers(1, 70), image=images, preprocessing=chains)
def test_the_products_equal_pillows_resize(height, width, image, preprocessing):
    assume(preprocessing.resize != "letterbox" and preprocessing.rounding == "vitkit")
    # images longer than four times the crop, whose size is rounded, lose their ends first, and a fraction of a pixel
    assume(
        preprocessing.resize == "squash"
        or max(height * image[1], width * image[0]) < 3 * min(height * image[1], width * image[0])
    )
    pixels = noise(height, width, 3)
    framed = resize_batch(torch.from_numpy(pixels)[None], image, preprocessing)[0]
    np.testing.assert_allclose(framed, with_pillow(pixels, image, preprocessing), atol=2e-3)


@given(height=st.integers(1, 100_000), width=st.integers(1, 100_000), image=images, preprocessing=chains)
@example(height=3, width=500, image=(8, 8), preprocessing=Preprocessing())
@example(height=425, width=477, image=(24, 7), preprocessing=Preprocessing(crop=0.95))  # 7 / (25 / 425), rounded twice
@example(height=427, width=640, image=(8, 8), preprocessing=Preprocessing(crop=0.9, rounding="timm"))
def test_sides_are_trimmed_and_rounded_as_python_rounds(height, width, image, preprocessing):
    expected = geometry((height, width), image, preprocessing)
    for side, axis in enumerate(axes(height, width, image, preprocessing)):
        found = [int(value.item()) for value in (axis.first, axis.kept, axis.size, axis.offset)]
        assert found == [part[side] for part in (expected.first, expected.kept, expected.size, expected.offset)]


def test_float_images_work_and_a_batch_equals_its_images():
    preprocessing = Preprocessing(interpolation="bilinear")
    deep = torch.rand(3, 40, 30, 1) * 255
    together = resize_batch(deep, (16, 16), preprocessing)
    for one, pixels in zip(together, deep, strict=True):
        torch.testing.assert_close(
            one,
            EvalTransform(image=(16, 16), preprocessing=preprocessing).resize_only(pixels.numpy()),
            atol=GREY_LEVELS,
            rtol=0,
        )


def test_rows_of_weights_sum_to_one_or_to_zero_in_the_padding():
    down, _ = axes(10, 40, (16, 16), Preprocessing(resize="letterbox"))
    rows, used = filter_weights(down, 10, 16, "bicubic")
    torch.testing.assert_close(rows.sum(dim=1), used.float())
    assert used.tolist() == [False] * 6 + [True] * 4 + [False] * 6


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        self.elements = max(
            [self.elements, *(leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor))]
        )
        return made


def test_no_tensor_larger_than_the_image_is_made_of_twelve_megapixels():
    with Largest() as largest:
        resize_batch(torch.zeros(1, 3000, 4000, 3, dtype=torch.uint8), (224, 224), Preprocessing())
    assert largest.elements == 3000 * 4000 * 3
