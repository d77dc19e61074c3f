"""Augmentation of images and masks together: masks that are functions of the pixels stay such functions."""

import colorsys
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import maximum_filter, minimum_filter
from torch import Tensor
from torch.testing import assert_close

from vitkit.data.colour_jitter import ColourDraws, draw_colours, jitter_colours
from vitkit.data.mask_augment import MaskAugment, augment_with_masks, draw_views
from vitkit.data.masked_transforms import MaskedTrainTransform, join_mask, resize_mask, split_mask
from vitkit.data.masks.ignore import IGNORE
from vitkit.errors import ConfigError

CLASSES = 5
LEVELS = 60  # grey levels between the classes: an interpolated pixel of the inside is nearest to its own


def regions(size: tuple[int, int], seed: int) -> np.ndarray:
    """Return (h, w) class numbers: the cells of a few random points, which are large enough to have an inside."""
    random = np.random.default_rng(seed)
    points = random.random((CLASSES, 2)) * size
    rows, columns = np.mgrid[: size[0], : size[1]]
    distance = (rows[..., None] - points[:, 0]) ** 2 + (columns[..., None] - points[:, 1]) ** 2
    return distance.argmin(-1).astype(np.uint8)


def joined_batch(size: tuple[int, int], count: int) -> Tensor:
    """Return (B, 4, h, w): images whose red is the class, green the row and blue the column, with their masks."""
    images = []
    for seed in range(count):
        mask = regions(size, seed)
        rows, columns = np.mgrid[: size[0], : size[1]]
        image = np.stack([mask * LEVELS, 255 * rows // size[0], 255 * columns // size[1]], axis=-1).astype(np.uint8)
        images.append(torch.from_numpy(join_mask(image, mask)).permute(2, 0, 1))
    return torch.stack(images)


def without_borders(joined: Tensor, reach: int) -> Tensor:
    """Return the batch with masks that ignore pixels within reach of another class: they mix when they are resized."""
    size, masks = 2 * reach + 1, joined[:, -1].numpy()
    inside = [maximum_filter(mask, size) == minimum_filter(mask, size) for mask in masks]
    kept = torch.from_numpy(np.where(inside, masks, IGNORE).astype(np.uint8))
    return torch.cat([joined[:, :-1], kept[:, None]], dim=1)


@settings(max_examples=40, deadline=None)
@given(
    canvas=st.tuples(st.integers(40, 97), st.integers(40, 97)),
    result=st.tuples(st.integers(32, 64), st.integers(32, 64)),
    scale=st.floats(0.4, 3.0),
    stretch=st.floats(1.0, 1.5),
    flip=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_a_mask_moves_as_the_pixels_that_it_is_a_function_of(canvas, result, scale, stretch, flip, seed):
    options = MaskAugment(scale=(scale, scale), aspect=(1 / stretch, stretch), flip=flip)
    joined = joined_batch(canvas, 4)
    pixels, masks = augment_with_masks(joined, np.arange(4), options, result, seed=seed, epoch=0)
    assert pixels.shape == (4, 3, *result)
    assert masks.shape == (4, *result)
    views = draw_views(np.arange(4), options, canvas, result, seed=seed, epoch=0)
    away = without_borders(joined, reach=math.ceil(views.reduction.max()) + 1)
    _, known = augment_with_masks(away, np.arange(4), options, result, seed=seed, epoch=0)
    assert torch.equal(known[known != IGNORE], masks[known != IGNORE])
    recomputed = (pixels[:, 0] * 255 / LEVELS).round()
    assert torch.equal(recomputed[known != IGNORE], masks[known != IGNORE].float())
    assert scale < 0.7 or (known != IGNORE).any()


@settings(max_examples=20, deadline=None)
@given(scale=st.floats(0.3, 1.0), flip=st.booleans(), seed=st.integers(0, 2**31))
def test_all_of_an_image_that_is_drawn_smaller_is_kept_and_what_is_beyond_is_ignored(scale, flip, seed):
    size = (48, 64)
    options = MaskAugment(scale=(scale, scale), flip=flip)
    _, masks = augment_with_masks(joined_batch(size, 3), np.arange(3), options, size, seed=seed, epoch=0)
    kept = (masks != IGNORE).float().mean(dim=(1, 2))
    assert_close(kept, torch.full((3,), scale**2), atol=0.06, rtol=0)


def test_without_randomness_images_and_masks_stay_as_they_are():
    joined = joined_batch((48, 64), 3)
    pixels, masks = augment_with_masks(joined, np.arange(3), MaskAugment(), (48, 64), seed=1, epoch=2)
    images, given_masks = split_mask(joined)
    assert_close(pixels, images / 255, atol=1e-5, rtol=0)
    assert torch.equal(masks, given_masks)


def test_a_flip_is_numpys():
    joined = joined_batch((48, 64), 32)
    options = MaskAugment(flip=True)
    _, masks = augment_with_masks(joined, np.arange(32), options, (48, 64), seed=3, epoch=0)
    _, given_masks = split_mask(joined)
    flipped = [
        torch.equal(mask, torch.from_numpy(before.numpy()[:, ::-1].copy()))
        for mask, before in zip(masks, given_masks, strict=True)
    ]
    same = [torch.equal(mask, before) for mask, before in zip(masks, given_masks, strict=True)]
    assert all(one != other for one, other in zip(flipped, same, strict=True))
    assert 4 < sum(flipped) < 28


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(6)), split=st.integers(1, 5))
def test_an_image_is_augmented_the_same_in_any_batch(order, split):
    joined = joined_batch((50, 70), 6)
    options = MaskAugment(scale=(0.3, 2.0), aspect=(0.8, 1.25), flip=True, colour=1.0)
    epochs = np.arange(6) // 2
    pixels, masks = augment_with_masks(joined, np.arange(6), options, (40, 56), seed=7, epoch=epochs)
    for part in (order[:split], order[split:]):
        rows = np.array(part)
        again = augment_with_masks(joined[rows], rows, options, (40, 56), seed=7, epoch=epochs[rows])
        assert torch.equal(again[0], pixels[rows])
        assert torch.equal(again[1], masks[rows])


def test_a_reduced_image_does_not_alias():
    """Stripes of one pixel become grey, as by antialiasing; sampling one pixel in four would keep some black."""
    stripes = np.zeros((128, 128, 3), np.uint8)
    stripes[:, ::2] = 255
    joined = torch.from_numpy(join_mask(stripes, np.zeros((128, 128), np.uint8))).permute(2, 0, 1)[None]
    pixels, _ = augment_with_masks(joined, [0], MaskAugment(), (32, 32), seed=0, epoch=0)
    assert_close(pixels[..., 1:-1, 1:-1], torch.full((1, 3, 30, 30), 0.5), atol=0.05, rtol=0)


def test_scales_are_drawn_from_their_range_in_logarithms():
    options = MaskAugment(scale=(0.5, 2.0))
    views = draw_views(np.arange(4000), options, (64, 64), (64, 64), seed=0, epoch=0)
    scales = 1 / views.matrices[:, 0, 0]
    assert scales.min() >= 0.5
    assert scales.max() <= 2.0
    assert abs((scales < 1).mean() - 0.5) < 0.05
    assert np.array_equal(views.reduction, views.matrices[:, 1, 1])


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_colour_jitter_moves_hue_and_saturation_as_colorsys_names_them(strength: float):
    """YIQ, as colorsys has it: brightness stays, saturation is the length of (I, Q), hue its angle."""
    draws = draw_colours(np.arange(200), strength, seed=5, epoch=0)
    colour = np.array([0.45, 0.5, 0.4])
    y, i, q = colorsys.rgb_to_yiq(*colour)
    for matrix in draws.matrices:
        moved = matrix @ colour
        new_y, new_i, new_q = colorsys.rgb_to_yiq(*np.clip(moved, 0, 1))
        assert abs(new_y - y) < 5e-3
        assert np.hypot(new_i, new_q) <= (1 + 0.5 * strength) * np.hypot(i, q) + 5e-3
    unchanged = np.isclose(draws.matrices, np.eye(3), atol=1e-9).all(axis=(1, 2))
    assert 0.1 < unchanged.mean() < 0.4  # neither of the two applies to a quarter of the images


def test_contrast_is_about_the_mean_and_brightness_is_added():
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 0.4 + 0.3
    draws = ColourDraws(
        matrices=np.tile(np.eye(3), (2, 1, 1)), contrast=np.array([0.5, 1.0]), brightness=np.array([0.0, 0.1])
    )
    jittered = jitter_colours(images, draws)
    mean = images[0].mean()
    assert_close(jittered[0], mean + 0.5 * (images[0] - mean), atol=1e-6, rtol=0)
    assert_close(jittered[1], images[1] + 0.1, atol=1e-6, rtol=0)


def test_grey_images_are_jittered_in_contrast_and_brightness():
    joined = joined_batch((32, 32), 8)[:, 2:]  # one channel and the mask
    pixels, masks = augment_with_masks(joined, np.arange(8), MaskAugment(colour=1.0), (32, 32), seed=0, epoch=0)
    assert pixels.shape == (8, 1, 32, 32)
    assert torch.equal(masks, split_mask(joined)[1])
    assert not torch.equal(pixels, split_mask(joined)[0] / 255)


@settings(max_examples=50, deadline=None)
@given(size=st.tuples(st.integers(1, 40), st.integers(1, 40)), new=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_masks_are_resized_to_the_nearest_pixel_as_torchs_nearest_exact(size, new):
    mask = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    theirs = torch.nn.functional.interpolate(torch.from_numpy(mask)[None, None].double(), new, mode="nearest-exact")
    differing = resize_mask(mask, new) != theirs[0, 0].numpy()
    assert not differing.any() or _ties(size, new)


def _ties(size: tuple[int, int], new: tuple[int, int]) -> bool:
    """Return whether a centre of a new pixel lies on the border of two old ones, where rounding decides."""
    for old, side in zip(size, new, strict=True):
        exact = (np.arange(side) * 2 + 1) * old % (2 * side) == 0
        if exact.any():
            return True
    return False


def test_the_canvas_keeps_numbers_of_classes_and_resizes_the_image_as_training_does():
    pixels = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    mask = np.where(np.random.default_rng(1).random((60, 80)) < 0.5, 3, IGNORE).astype(np.uint8)
    transform = MaskedTrainTransform(image=(30, 40))
    prepared = transform.prepare(join_mask(pixels, mask))
    assert prepared.shape == (30, 40, 4)
    assert set(np.unique(prepared[..., 3])) == {3, IGNORE}
    resized = torch.nn.functional.interpolate(
        torch.from_numpy(pixels).permute(2, 0, 1)[None], (30, 40), mode="bilinear", antialias=True
    )
    assert np.array_equal(prepared[..., :3], resized[0].permute(1, 2, 0).numpy())


@pytest.mark.parametrize("scale", [(0.0, 1.0), (2.0, 1.0)])
def test_a_range_that_is_none_is_refused(scale):
    with pytest.raises(ConfigError, match=r"augment\.scale"):
        MaskAugment(scale=scale)
