"""Batch augmentation: random boxes, erasing, mixing, and the whole chain."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitkit.data.augment import Augment, augment, erase, mix
from vitkit.data.random_boxes import box_masks, random_boxes
from vitkit.data.stateless_rng import uniform
from vitkit.errors import ConfigError, SizeError

EVERYTHING = Augment(randaugment=(2, 9), erase=0.5, mixup=0.2, cutmix=1.0)
sizes = st.tuples(st.integers(2, 20), st.integers(2, 20))
areas = st.tuples(st.floats(0.02, 1), st.floats(0.02, 1)).map(lambda pair: (min(pair), max(pair)))


def smooth(count: int, channels: int, size: tuple[int, int]) -> torch.Tensor:
    """Images without sharp edges, so that a rounding error of a position stays one of a value."""
    noise = torch.rand(count, channels, 4, 4)
    return torch.nn.functional.interpolate(noise, size, mode="bilinear", align_corners=True)


# Random boxes


@given(size=sizes, area=areas, seed=st.integers(0, 2**40))
def test_random_boxes_are_inside_the_image_and_have_the_drawn_area(
    size: tuple[int, int], area: tuple[float, float], seed: int
):
    draws = uniform(seed, 0, torch.arange(50), "crop", 4)
    left, top, right, bottom = random_boxes(draws, size, area=area, aspect=(3 / 4, 4 / 3)).T
    assert min(left.min(), top.min()) >= 0
    assert right.max() <= size[1] + 1e-9
    assert bottom.max() <= size[0] + 1e-9
    share = (right - left) * (bottom - top) / (size[0] * size[1])
    assert np.allclose(share, area[0] + (area[1] - area[0]) * draws[:, 0].astype(float), rtol=1e-6)


def test_areas_aspect_ratios_and_positions_are_uniform_over_their_ranges():
    draws = uniform(3, 1, torch.arange(20_000), "crop", 4)
    left, top, right, bottom = random_boxes(draws, (224, 224), area=(0.05, 0.5), aspect=(3 / 4, 4 / 3)).T
    width, height = right - left, bottom - top
    assert stats.kstest(width * height / 224**2, stats.uniform(0.05, 0.45).cdf).pvalue > 1e-4
    # up to half the area every shape between 3:4 and 4:3 fits, so none is left out
    shape = np.log(width / height) / np.log(4 / 3)
    assert stats.kstest(shape, stats.uniform(-1, 2).cdf).pvalue > 1e-4
    assert stats.kstest(left / (224 - width), "uniform").pvalue > 1e-4
    assert stats.kstest(top / (224 - height), "uniform").pvalue > 1e-4


# Erasing


def test_erasing_paints_one_box_of_one_colour_on_the_given_share():
    images = torch.full((2_000, 3, 32, 32), 2.0)  # a value that erasing never paints
    erased = erase(images, torch.arange(2_000), 0.25, seed=5, epoch=0)
    painted = erased != 2
    assert torch.equal(painted[:, 0], painted[:, 2])
    touched = painted[:, 0].flatten(1).any(1)
    assert stats.binomtest(int(touched.sum()), 2_000, 0.25).pvalue > 1e-4
    shares = painted[touched, 0].float().mean((1, 2))
    assert 0.01 < shares.min() <= shares.max() < 0.37  # 0.02 to 1/3, give or take whole pixels
    for image, mask in zip(erased[touched][:50], painted[touched][:50, 0], strict=True):
        rows, columns = mask.any(1), mask.any(0)
        assert torch.equal(mask, rows[:, None] & columns)  # a rectangle
        assert all(len(channel[mask].unique()) == 1 for channel in image)


def test_a_box_mask_covers_the_pixels_whose_centre_is_inside():
    mask = box_masks(np.array([[1.0, 0.0, 3.0, 2.0], [0.6, 0.4, 0.6, 9.0]]), (3, 4), torch.device("cpu"))
    assert mask[0, 0].int().tolist() == [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert not mask[1].any()


# Mixing


@given(count=st.integers(1, 5), size=sizes, alpha=st.floats(0.05, 4), step=st.integers(0, 10**6))
def test_mixup_is_a_convex_combination_with_the_neighbour(count: int, size: tuple[int, int], alpha: float, step: int):
    images, targets = torch.rand(count, 3, *size), torch.eye(7)[torch.arange(count)]
    mixed, shares = mix(images, targets, Augment(mixup=alpha), seed=1, step=step, rank=0)
    kept = shares[0, 0].item() if count > 1 else 1.0
    assert 0.5 <= kept <= 1
    partner = np.roll(images.numpy(), 1, 0)
    np.testing.assert_allclose(mixed, kept * images.numpy() + (1 - kept) * partner, atol=1e-5)
    np.testing.assert_allclose(shares, kept * targets.numpy() + (1 - kept) * np.roll(targets.numpy(), 1, 0), atol=1e-6)


@given(count=st.integers(2, 5), size=sizes, alpha=st.floats(0.05, 4), step=st.integers(0, 10**6))
def test_cutmix_targets_are_the_share_of_pixels_that_each_image_keeps(
    count: int, size: tuple[int, int], alpha: float, step: int
):
    images = torch.arange(count).float().view(-1, 1, 1, 1).expand(count, 2, *size)  # an image's pixels are its number
    mixed, shares = mix(images, torch.eye(count), Augment(cutmix=alpha), seed=1, step=step, rank=3)
    for image in range(count):
        own, other = (mixed[image] == image), (mixed[image] == (image - 1) % count)
        assert (own ^ other).all()
        box = other[0]
        assert torch.equal(box, box.any(1)[:, None] & box.any(0))
        assert shares[image, image].item() == pytest.approx(own.float().mean().item(), abs=1e-6)
        assert shares[image].sum().item() == pytest.approx(1, abs=1e-6)


def test_mixing_follows_the_beta_distribution_and_alternates_mixup_and_cutmix():
    images, targets = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 16, 16), torch.eye(2)
    kept = [mix(images, targets, Augment(mixup=0.4), seed=0, step=step, rank=0)[1][0, 0].item() for step in range(1500)]
    folded = stats.beta(0.4, 0.4)  # the larger of b and 1 - b
    assert stats.kstest(kept, lambda x: folded.cdf(x) - folded.cdf(1 - x)).pvalue > 1e-4
    both = [mix(images, targets, Augment(mixup=0.4, cutmix=1), seed=0, step=step, rank=0)[0] for step in range(800)]
    blended = sum(bool(((image > 0) & (image < 1)).any()) for image in both)
    assert stats.binomtest(blended, 800).pvalue > 1e-4


def test_mixing_depends_on_seed_step_and_rank_alone():
    images, targets = torch.rand(4, 3, 8, 8), torch.eye(4)
    first, again, *others = (
        mix(images, targets, EVERYTHING, seed=seed, step=step, rank=rank)[0]
        for seed, step, rank in [(1, 2, 3), (1, 2, 3), (1, 3, 2), (2, 2, 3), (1, 2, 4)]
    )
    assert torch.equal(first, again)
    assert not any(torch.equal(first, other) for other in others)


# The chain


@given(
    dataset_indices=st.lists(st.integers(0, 10**9), min_size=1, max_size=6, unique=True),
    channels=st.sampled_from([1, 3, 4]),
    epoch=st.integers(0, 99),
)
def test_an_image_is_augmented_the_same_in_any_batch_and_position(
    dataset_indices: list[int], channels: int, epoch: int
):
    indices = torch.tensor(dataset_indices)
    images = torch.rand(len(dataset_indices), channels, 16, 12)
    together = augment(images, indices, EVERYTHING, seed=9, epoch=epoch)
    backwards = augment(images.flip(0), indices.flip(0), EVERYTHING, seed=9, epoch=torch.full_like(indices, epoch))
    assert torch.allclose(together, backwards.flip(0), atol=1e-6)
    for position in range(len(dataset_indices)):
        alone = augment(
            images[position : position + 1], indices[position : position + 1], EVERYTHING, seed=9, epoch=epoch
        )
        assert torch.allclose(alone[0], together[position], atol=1e-6)


def test_another_epoch_seed_or_index_is_augmented_differently():
    images = torch.rand(1, 3, 16, 16).expand(8, 3, 16, 16)
    base, *others = (
        augment(images, torch.arange(8) + first, EVERYTHING, seed=seed, epoch=epoch)
        for seed, epoch, first in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 100)]
    )
    for other in others:
        assert not any(torch.equal(one, two) for one, two in zip(base, other, strict=True))
    assert len({image.sum().item() for image in base}) == 8


@pytest.mark.parametrize(
    "options", [EVERYTHING, Augment(), *(Augment(randaugment=(2, magnitude)) for magnitude in (0, 10, 15, 20))]
)
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_results_are_floats_between_0_and_1_and_the_input_is_not_modified(options: Augment, channels: int):
    images = torch.rand(64, channels, 12, 16)
    before = images.clone()
    changed = augment(images, torch.arange(64), options, seed=0, epoch=0)
    assert torch.equal(images, before)
    assert changed.shape == images.shape
    assert changed.dtype == torch.float32
    assert -1e-6 <= changed.min() <= changed.max() <= 1 + 1e-6


def test_uint8_images_are_scaled_first():
    images = torch.randint(0, 256, (8, 3, 12, 12), dtype=torch.uint8)
    from_bytes, from_floats = (
        augment(batch, torch.arange(8), EVERYTHING, seed=0, epoch=0) for batch in (images, images.float() / 255)
    )
    assert torch.equal(from_bytes, from_floats)


def test_augmentation_never_reads_pixel_values_on_the_host():
    """On the meta device tensors have no values: any code that reads one fails."""
    images, targets = torch.empty(64, 3, 32, 32, device="meta"), torch.empty(64, 10, device="meta")
    changed = augment(images, torch.arange(64), EVERYTHING, seed=0, epoch=0)
    for step in range(4):  # mixup and cutmix both
        mixed, shares = mix(changed, targets, EVERYTHING, seed=0, step=step, rank=0)
    assert mixed.shape == images.shape
    assert shares.shape == targets.shape


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_never_synchronised_and_gives_the_same_images():
    images, indices, targets = smooth(64, 3, (64, 48)), torch.arange(64), torch.eye(64)
    expected = augment(images, indices, EVERYTHING, seed=3, epoch=1)
    on_gpu, gpu_targets = images.cuda(), targets.cuda()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        changed = augment(on_gpu, indices, EVERYTHING, seed=3, epoch=1)
        mixed, _ = mix(changed, gpu_targets, EVERYTHING, seed=3, step=1, rank=0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    # a rounding error can move a pixel by a shade before equalize or solarize, or across a border: few may differ
    assert ((changed.cpu() - expected).abs() < 0.01).float().mean() > 0.995
    expected_mix, _ = mix(expected, targets, EVERYTHING, seed=3, step=1, rank=0)
    assert ((mixed.cpu() - expected_mix).abs() < 0.01).float().mean() > 0.99


# Errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"erase": 2.0}, "share of the images"),
        ({"erase": -0.1}, "erase"),
        ({"mixup": -1.0}, "Beta"),
        ({"cutmix": float("nan")}, "Beta"),
        ({"randaugment": (0, 9)}, "such as"),
        ({"randaugment": (2, 31)}, "0 to 30"),
    ],
)
def test_options_out_of_range_are_rejected(settings: dict, message: str):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        Augment(**settings)


def test_inputs_of_the_wrong_shape_are_rejected():
    images = torch.rand(2, 3, 8, 8)
    with pytest.raises(SizeError, match="batch of images"):
        augment(images[0], torch.arange(3), EVERYTHING, seed=0, epoch=0)
    with pytest.raises(SizeError, match="index of each of 2 images"):
        augment(images, torch.arange(3), EVERYTHING, seed=0, epoch=0)
    with pytest.raises(SizeError, match="one-hot"):
        mix(images, torch.tensor([0, 1]), EVERYTHING, seed=0, step=0, rank=0)
