"""EvalTransform and TrainTransform against Pillow, on noise and on real photos."""

from __future__ import annotations

import resource
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from tests.data.sample_images import scene
from vitkit.data.decode import decode
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.random_boxes import random_box, random_boxes
from vitkit.data.resize import resize
from vitkit.data.stateless_rng import uniform
from vitkit.data.transforms import EvalTransform, TrainTransform, round_box
from vitkit.errors import ConfigError

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
DRAWS = TrainTransform.draw(0, 0, range(1000))
sides = st.integers(1, 70)


def with_pillow(pixels: np.ndarray, image: tuple[int, int], preprocessing: Preprocessing) -> np.ndarray:
    """Do the same with Pillow, channel by channel in floats."""
    height, width = pixels.shape[:2]
    grown = [round(side / preprocessing.crop) for side in image]
    if preprocessing.resize == "crop":
        scale = max(grown[0] / height, grown[1] / width)
        grown = [max(round(height * scale), grown[0]), max(round(width * scale), grown[1])]
    planes = [Image.fromarray(pixels[:, :, channel].astype(np.float32)) for channel in range(pixels.shape[2])]
    resized = np.stack(
        [np.asarray(plane.resize((grown[1], grown[0]), FILTERS[preprocessing.interpolation])) for plane in planes]
    )
    top, left = (grown[0] - image[0]) // 2, (grown[1] - image[1]) // 2
    return resized[:, top : top + image[0], left : left + image[1]].clip(0, 255)


@given(
    height=sides,
    width=sides,
    image=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    shape=st.sampled_from(["crop", "squash"]),
    crop=st.sampled_from([1.0, 0.9, 0.875]),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
)
def test_the_eval_transform_equals_pillow(height, width, image, shape, crop, interpolation):
    # images longer than four times the crop lose their ends first, and with them a fraction of a pixel
    tall, wide = (round(side / crop) for side in image)
    scale = max(tall / height, wide / width)
    assume(shape == "squash" or (height * scale <= 4 * tall and width * scale <= 4 * wide))
    preprocessing = Preprocessing(resize=shape, crop=crop, interpolation=interpolation)
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    framed = EvalTransform(image=image, preprocessing=preprocessing).resize_only(pixels)
    assert framed.shape == (3, *image)
    np.testing.assert_allclose(framed, with_pillow(pixels, image, preprocessing), atol=2e-3)


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (3, 5000), (1, 1), (20, 900)])
@pytest.mark.parametrize("shape", ["crop", "squash", "letterbox"])
def test_long_thin_images_need_no_more_memory_than_others(size: tuple[int, int], shape: str):
    ramp = np.linspace(0, 255, max(size)).astype(np.uint8)
    pixels = np.repeat(np.resize(ramp, size if size[0] <= size[1] else size[::-1])[:, :, None], 3, axis=2)
    pixels = pixels if size[0] <= size[1] else pixels.swapaxes(0, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    framed = EvalTransform(image=(224, 224), preprocessing=Preprocessing(resize=shape)).resize_only(
        np.ascontiguousarray(pixels)
    )
    assert framed.shape == (3, 224, 224)
    if shape == "crop" and max(size) > 1:
        assert framed.mean().item() == pytest.approx(127, abs=3)  # the middle of the ramp
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # KiB, not 36 GB


def test_the_train_transform_describes_itself():
    assert TrainTransform(image=(224, 224)).describe() == [
        "random crop of 5% to 100% of the area, resized to 224 x 224 (bilinear, uint8)",
        "random horizontal flip of half of the images",
    ]
    uncropped = TrainTransform(
        image=(32, 32), crop=None, flip=False, preprocessing=Preprocessing(crop=0.5, mean=(0.2,) * 3)
    )
    assert uncropped.describe() == ["short side to 64 px (bilinear, antialiased, uint8), centre crop 32 x 32"]


def test_values_are_normalised_by_mean_and_std():
    preprocessing = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), resize="squash")
    transform = EvalTransform(image=(24, 40), preprocessing=preprocessing)
    expected = (scene() / 255 - np.array(preprocessing.mean)) / np.array(preprocessing.std)
    np.testing.assert_allclose(transform(scene()).permute(1, 2, 0), expected, atol=1e-5)


@given(height=sides, width=sides, image=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_a_letterbox_keeps_all_of_the_image_and_its_aspect_ratio(height: int, width: int, image: tuple[int, int]):
    transform = EvalTransform(image=image, preprocessing=Preprocessing(resize="letterbox", interpolation="bilinear"))
    normalised = transform(np.full((height, width, 3), 255, np.uint8))
    covered = (normalised - 1).abs() < 1e-4  # white becomes 1, the mean colour 0
    assert (covered | (normalised.abs() < 1e-6)).all()
    rows, columns = covered[0].any(1).sum().item(), covered[0].any(0).sum().item()
    assert (rows, columns) == (image[0], columns) or columns == image[1]  # touches two sides
    scale = min(image[0] / height, image[1] / width)
    assert rows == pytest.approx(max(height * scale, 1), abs=0.51)
    assert columns == pytest.approx(max(width * scale, 1), abs=0.51)


@pytest.mark.parametrize(
    ("image", "preprocessing", "geometry"),
    [
        ((224, 224), {"crop": 0.9}, "short side to 249 px (bicubic, antialiased), centre crop 224 x 224"),
        (
            (224, 224),
            {"crop": 0.9, "rounding": "timm"},
            "short side to 248 px (bicubic, antialiased), centre crop 224 x 224",
        ),
        (
            (160, 224),
            {"crop": 0.9, "rounding": "timm"},
            "resized to cover 177 x 248 px (bilinear, antialiased), centre crop 160 x 224",
        ),
        ((32, 32), {"resize": "squash"}, "resized to 32 x 32 px, whatever the shape (bicubic, antialiased)"),
        (
            (224, 224),
            {"resize": "squash", "crop": 0.875},
            "resized to 256 x 256 px, whatever the shape (bicubic, antialiased), centre crop 224 x 224",
        ),
        (
            (32, 32),
            {"resize": "letterbox", "crop": 0.9},
            "resized to fit 32 x 32 px (bicubic, antialiased), padded with the mean colour",
        ),
        (
            (32, 32),
            {"resize": "letterbox", "crop": 0.9, "rounding": "timm"},
            "resized to fit 35 x 35 px (bicubic, antialiased), padded with the mean colour, centre crop 32 x 32",
        ),
    ],
)
def test_the_eval_transform_describes_itself(image, preprocessing, geometry):
    transform = EvalTransform(image=image, preprocessing=Preprocessing(**preprocessing, origin="says who"))
    assert transform.describe() == [geometry, "scaled to 0…1, mean 0.5, std 0.5", "says who"]
    assert transform.description == f"{geometry}; scaled to 0…1, mean 0.5, std 0.5; says who"


def test_the_eval_transform_keeps_more_than_8_bits():
    high_bit = np.full((8, 8, 3), 100.25, np.float32)
    transform = EvalTransform(image=(8, 8), preprocessing=Preprocessing(resize="squash"))
    torch.testing.assert_close(transform.resize_only(high_bit), torch.full((3, 8, 8), 100.25))
    assert TrainTransform(image=(8, 8), crop=None, flip=False)(high_bit, DRAWS[0]).dtype == torch.uint8


@pytest.mark.parametrize("filter", FILTERS)
def test_real_photos_are_resized_as_in_pillow(filter: str, shared: Path):
    """Floats equal Pillow's floats; bytes, bilinear as in training, stay within a grey level of Pillow's bytes."""
    for pixels in photos(shared):
        batch = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        for size in ((96, 96), (128, 160), (224, 224)):
            floats = resize(batch.float(), size, filter)[0].clamp(0, 255)
            preprocessing = Preprocessing(resize="squash", interpolation=filter)
            np.testing.assert_allclose(floats, with_pillow(pixels, size, preprocessing), atol=1e-2)
            if filter == "bilinear":
                theirs = np.asarray(Image.fromarray(pixels).resize((size[1], size[0]), FILTERS[filter])).astype(int)
                ours = resize(batch, size, filter)[0]
                assert np.abs(ours.permute(1, 2, 0).numpy() - theirs).max() <= 1
                assert (ours - floats).abs().max() <= 1.01  # the error of uint8, before normalisation


def photos(shared: Path) -> list[np.ndarray]:
    with tarfile.open(shared / "data" / "pets160.tar") as archive:
        members = [member for member in archive if member.isfile()][::150]
        return [decode(archive.extractfile(member).read()) for member in members]


def test_the_train_transform_without_crop_and_flip_equals_pillows_resize():
    transform = TrainTransform(image=(20, 30), crop=None, flip=False, preprocessing=Preprocessing(resize="squash"))
    theirs = np.asarray(Image.fromarray(scene(50, 80)).resize((30, 20), Image.Resampling.BILINEAR)).astype(int)
    ours = transform(scene(50, 80), DRAWS[0]).permute(1, 2, 0).numpy()
    assert np.abs(ours - theirs).max() <= 1


@given(size=st.tuples(sides, sides), seed=st.integers(0, 99))
def test_crops_are_inside_the_image_and_never_empty(size: tuple[int, int], seed: int):
    draws = uniform(seed, 0, range(20), "view", 4)
    boxes = random_boxes(draws, size, area=(0.01, 1.0), aspect=(3 / 4, 4 / 3))
    for box, own in zip(boxes, draws.tolist(), strict=True):
        np.testing.assert_allclose(random_box(own, size, area=(0.01, 1.0), aspect=(3 / 4, 4 / 3)), box, atol=1e-9)
        left, top, right, bottom = round_box(box)
        assert 0 <= left < right <= size[1]
        assert 0 <= top < bottom <= size[0]


def test_a_crop_is_the_random_box():
    transform = TrainTransform(image=(24, 40), flip=False)
    for index in range(20):
        draws = TrainTransform.draw(5, 2, [index])
        box = random_boxes(np.array(draws)[:, 1:], (50, 80), area=transform.crop, aspect=transform.aspect)[0]
        piece = Image.fromarray(scene(50, 80)).crop(tuple(round_box(box)))
        theirs = np.asarray(piece.resize((40, 24), Image.Resampling.BILINEAR)).astype(int)
        ours = transform(scene(50, 80), draws[0]).permute(1, 2, 0).numpy()
        assert np.abs(ours - theirs).max() <= 1


@pytest.mark.parametrize("size", [(20, 30), (300, 200)])
def test_bits_crop_is_pillows_resize_to_a_square_and_a_crop_from_any_place_of_it(size: tuple[int, int]):
    pixels = np.random.default_rng(3).integers(0, 256, (*size, 3), np.uint8)
    transform = TrainTransform(image=(24, 16), precrop=40, flip=False)
    resized = np.asarray(Image.fromarray(pixels).resize((40, 40), Image.Resampling.BILINEAR)).astype(int)
    places = {}
    for draw in np.random.default_rng(4).random((3_000, 5)).tolist():
        view = transform(pixels, draw)
        assert view.shape == (3, 24, 16)
        places[int(draw[3] * 17), int(draw[4] * 25)] = view
    assert places.keys() == {(top, left) for top in range(17) for left in range(25)}
    for (top, left), view in places.items():
        expected = resized[top : top + 24, left : left + 16].transpose(2, 0, 1)
        assert np.abs(view.numpy().astype(int) - expected).max() <= 1  # of 255: both round to whole grey levels
    assert transform.describe() == ["resized to 40 x 40, whatever the shape (bilinear, uint8), random crop 24 x 16"]
    with pytest.raises(ConfigError, match=r"augment.precrop = 40 is smaller than the model's input, 48 x 16 px"):
        TrainTransform(image=(48, 16), precrop=40)


def test_half_of_the_images_are_flipped():
    transform = TrainTransform(image=(24, 40), crop=None)
    upright = torch.from_numpy(scene()).permute(2, 0, 1)
    mirrored = upright.flip(-1)
    views = [transform(scene(), DRAWS[index]) for index in range(1000)]
    share = np.mean([torch.equal(view, mirrored) for view in views])
    assert share == pytest.approx(0.5, abs=0.05)
    assert all(torch.equal(view, mirrored) or torch.equal(view, upright) for view in views)
