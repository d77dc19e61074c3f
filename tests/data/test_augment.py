from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

from vitkit.data.augment import Augment, augment, erase, mix
from vitkit.data.boxes import draw_boxes, inside
from vitkit.data.draws import uniform
from vitkit.data.presets import AUGREG, preset
from vitkit.data.warp import crop_map, flip_map, sample
from vitkit.errors import ConfigError, SizeError

EVERYTHING = Augment(crop=(0.3, 1), flip=0.5, randaugment=(2, 9), erase=0.5, mixup=0.2, cutmix=1.0)
sizes = st.tuples(st.integers(2, 20), st.integers(2, 20))
areas = st.tuples(st.floats(0.02, 1), st.floats(0.02, 1)).map(lambda pair: (min(pair), max(pair)))


def smooth(count: int, channels: int, size: tuple[int, int]) -> torch.Tensor:
    """Without sharp edges, so that a rounding error of a position stays one of a value."""
    noise = torch.rand(count, channels, 4, 4)
    return torch.nn.functional.interpolate(noise, size, mode="bilinear", align_corners=True)


# Crop and flip


@given(size=sizes, area=areas, seed=st.integers(0, 2**40))
def test_boxes_lie_inside_the_picture_and_have_the_area_asked_for(
    size: tuple[int, int], area: tuple[float, float], seed: int
):
    draws = uniform(seed, 0, torch.arange(50), "crop", 4)
    left, top, right, bottom = draw_boxes(draws, size, area=area, aspect=(3 / 4, 4 / 3)).T
    assert min(left.min(), top.min()) >= 0
    assert right.max() <= size[1] + 1e-9
    assert bottom.max() <= size[0] + 1e-9
    share = (right - left) * (bottom - top) / (size[0] * size[1])
    assert np.allclose(share, area[0] + (area[1] - area[0]) * draws[:, 0].astype(float), rtol=1e-6)


def test_areas_are_uniform_and_shapes_and_places_fill_their_ranges():
    draws = uniform(3, 1, torch.arange(20_000), "crop", 4)
    left, top, right, bottom = draw_boxes(draws, (224, 224), area=(0.05, 0.5), aspect=(3 / 4, 4 / 3)).T
    width, height = right - left, bottom - top
    assert stats.kstest(width * height / 224**2, stats.uniform(0.05, 0.45).cdf).pvalue > 1e-4
    # up to half the area every shape between 3:4 and 4:3 fits, so none is left out
    shape = np.log(width / height) / np.log(4 / 3)
    assert stats.kstest(shape, stats.uniform(-1, 2).cdf).pvalue > 1e-4
    assert stats.kstest(left / (224 - width), "uniform").pvalue > 1e-4
    assert stats.kstest(top / (224 - height), "uniform").pvalue > 1e-4


@given(size=sizes, seed=st.integers(0, 10**6), channels=st.sampled_from([1, 3, 4]))
def test_cropping_and_flipping_are_pillows_transform(size: tuple[int, int], seed: int, channels: int):
    height, width = size
    images = smooth(4, channels, size)
    boxes = draw_boxes(uniform(seed, 0, torch.arange(4), "crop", 4), size, area=(0.1, 1), aspect=(3 / 4, 4 / 3))
    flipped = np.array([False, True, False, True])
    ours = sample(images, crop_map(boxes, size) @ flip_map(flipped, size))
    for picture, (left, top, right, bottom), flip, result in zip(images, boxes.tolist(), flipped, ours, strict=True):
        for channel in range(channels):
            theirs = Image.fromarray(picture[channel].numpy()).transform(
                (width, height), Image.Transform.EXTENT, (left, top, right, bottom), Image.Resampling.BILINEAR
            )
            expected = np.asarray(theirs)[:, ::-1] if flip else np.asarray(theirs)
            np.testing.assert_allclose(result[channel], expected, atol=1e-4)


def test_flipping_alone_is_exact_and_as_frequent_as_asked():
    images, indices = torch.rand(4_000, 1, 2, 3), torch.arange(4_000)
    changed = augment(images, indices, Augment(flip=0.3), seed=0, epoch=0)
    mirrored = (changed == images.flip(3)).flatten(1).all(1)
    assert torch.equal(changed[~mirrored], images[~mirrored])
    assert stats.binomtest(int(mirrored.sum()), 4_000, 0.3).pvalue > 1e-4


# Erasing


def test_erasing_paints_one_box_of_one_colour_on_the_share_asked_for():
    images = torch.full((2_000, 3, 32, 32), 2.0)  # no colour that erasing could paint
    erased = erase(images, torch.arange(2_000), 0.25, seed=5, epoch=0)
    painted = erased != 2
    assert torch.equal(painted[:, 0], painted[:, 2])
    touched = painted[:, 0].flatten(1).any(1)
    assert stats.binomtest(int(touched.sum()), 2_000, 0.25).pvalue > 1e-4
    shares = painted[touched, 0].float().mean((1, 2))
    assert 0.01 < shares.min() <= shares.max() < 0.37  # 0.02 to 1/3, give or take whole pixels
    for picture, mask in zip(erased[touched][:50], painted[touched][:50, 0], strict=True):
        rows, columns = mask.any(1), mask.any(0)
        assert torch.equal(mask, rows[:, None] & columns)  # a rectangle
        assert all(len(channel[mask].unique()) == 1 for channel in picture)


def test_the_pixels_inside_a_box_are_those_whose_centre_is():
    mask = inside(np.array([[1.0, 0.0, 3.0, 2.0], [0.6, 0.4, 0.6, 9.0]]), (3, 4), torch.device("cpu"))
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
def test_cutmix_targets_are_the_pixels_that_each_picture_keeps(
    count: int, size: tuple[int, int], alpha: float, step: int
):
    images = torch.arange(count).float().view(-1, 1, 1, 1).expand(count, 2, *size)  # a picture's pixels are its number
    mixed, shares = mix(images, torch.eye(count), Augment(cutmix=alpha), seed=1, step=step, rank=3)
    for picture in range(count):
        own, other = (mixed[picture] == picture), (mixed[picture] == (picture - 1) % count)
        assert (own ^ other).all()
        box = other[0]
        assert torch.equal(box, box.any(1)[:, None] & box.any(0))
        assert shares[picture, picture].item() == pytest.approx(own.float().mean().item(), abs=1e-6)
        assert shares[picture].sum().item() == pytest.approx(1, abs=1e-6)


def test_mixing_follows_the_beta_distribution_and_alternates_where_both_are_asked_for():
    images, targets = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 16, 16), torch.eye(2)
    kept = [mix(images, targets, Augment(mixup=0.4), seed=0, step=step, rank=0)[1][0, 0].item() for step in range(1500)]
    folded = stats.beta(0.4, 0.4)  # the larger of b and 1 - b
    assert stats.kstest(kept, lambda x: folded.cdf(x) - folded.cdf(1 - x)).pvalue > 1e-4
    both = [mix(images, targets, Augment(mixup=0.4, cutmix=1), seed=0, step=step, rank=0)[0] for step in range(800)]
    blended = sum(bool(((picture > 0) & (picture < 1)).any()) for picture in both)
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
    pictures=st.lists(st.integers(0, 10**9), min_size=1, max_size=6, unique=True),
    channels=st.sampled_from([1, 3, 4]),
    epoch=st.integers(0, 99),
)
def test_a_picture_is_augmented_the_same_in_any_batch_and_place(pictures: list[int], channels: int, epoch: int):
    indices = torch.tensor(pictures)
    images = torch.rand(len(pictures), channels, 16, 12)
    together = augment(images, indices, EVERYTHING, seed=9, epoch=epoch)
    backwards = augment(images.flip(0), indices.flip(0), EVERYTHING, seed=9, epoch=torch.full_like(indices, epoch))
    assert torch.allclose(together, backwards.flip(0), atol=1e-6)
    for place in range(len(pictures)):
        alone = augment(images[place : place + 1], indices[place : place + 1], EVERYTHING, seed=9, epoch=epoch)
        assert torch.allclose(alone[0], together[place], atol=1e-6)


def test_another_epoch_seed_or_picture_is_augmented_otherwise():
    images = torch.rand(1, 3, 16, 16).expand(8, 3, 16, 16)
    base, *others = (
        augment(images, torch.arange(8) + first, EVERYTHING, seed=seed, epoch=epoch)
        for seed, epoch, first in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 100)]
    )
    for other in others:
        assert not any(torch.equal(one, two) for one, two in zip(base, other, strict=True))
    assert len({picture.sum().item() for picture in base}) == 8


@pytest.mark.parametrize("how", [EVERYTHING, *AUGREG.values()])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_results_are_floats_between_0_and_1_and_the_input_is_left_alone(how: Augment, channels: int):
    images = torch.rand(64, channels, 12, 16)
    before = images.clone()
    changed = augment(images, torch.arange(64), how, seed=0, epoch=0)
    assert torch.equal(images, before)
    assert changed.shape == images.shape
    assert changed.dtype == torch.float32
    assert -1e-6 <= changed.min() <= changed.max() <= 1 + 1e-6


def test_bytes_are_scaled_first():
    images = torch.randint(0, 256, (8, 3, 12, 12), dtype=torch.uint8)
    from_bytes, from_floats = (
        augment(batch, torch.arange(8), EVERYTHING, seed=0, epoch=0) for batch in (images, images.float() / 255)
    )
    assert torch.equal(from_bytes, from_floats)


def test_nothing_looks_at_the_pixels():
    """On the meta device tensors have no values: any code that waits for one fails."""
    images, targets = torch.empty(64, 3, 32, 32, device="meta"), torch.empty(64, 10, device="meta")
    changed = augment(images, torch.arange(64), EVERYTHING, seed=0, epoch=0)
    for step in range(4):  # mixup and cutmix both
        mixed, shares = mix(changed, targets, EVERYTHING, seed=0, step=step, rank=0)
    assert mixed.shape == images.shape
    assert shares.shape == targets.shape


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_never_waited_for_and_gives_the_same_pictures():
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


# What people get wrong


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop": (0.5, 1.5)}, "crop=.* up to 1"),
        ({"crop": (0.0, 1.0)}, "crop"),
        ({"aspect": (2.0, 1.0)}, "aspect"),
        ({"flip": 2.0}, "share of the pictures"),
        ({"erase": -0.1}, "erase"),
        ({"mixup": -1.0}, "Beta"),
        ({"cutmix": float("nan")}, "Beta"),
        ({"randaugment": (0, 9)}, "such as"),
        ({"randaugment": (2, 31)}, "0 to 30"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict, message: str):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        Augment(**settings)


def test_inputs_of_the_wrong_kind_are_refused():
    images = torch.rand(2, 3, 8, 8)
    with pytest.raises(SizeError, match="batch of pictures"):
        augment(images[0], torch.arange(3), EVERYTHING, seed=0, epoch=0)
    with pytest.raises(SizeError, match="index of each of 2 pictures"):
        augment(images, torch.arange(3), EVERYTHING, seed=0, epoch=0)
    with pytest.raises(SizeError, match="one-hot"):
        mix(images, torch.tensor([0, 1]), EVERYTHING, seed=0, step=0, rank=0)


def test_presets_are_augregs_table():
    """big_vision's vit_i21k.py, RANDAUG_DEF and MIXUP_DEF."""
    table = {name: (how.randaugment, how.mixup) for name, how in AUGREG.items()}
    assert table == {
        "none": (None, 0),
        "light1": ((2, 0), 0),
        "light2": ((2, 10), 0.2),
        "medium1": ((2, 15), 0.2),
        "medium2": ((2, 15), 0.5),
        "strong1": ((2, 20), 0.5),
        "strong2": ((2, 20), 0.8),
    }
    assert preset("strong1") is AUGREG["strong1"]
    with pytest.raises(ConfigError, match="did you mean medium1"):
        preset("medum1")
