"""The exact and the fast chain against Pillow, on noise and on real photos."""

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

from tests.data.images import scene
from vitkit.data.boxes import draw_box, draw_boxes
from vitkit.data.decode import decode
from vitkit.data.draws import uniform
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.resize import resize
from vitkit.data.transforms import Exact, Fast, whole_pixels

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
DRAWS = Fast.draw(0, 0, range(1000))
sides = st.integers(1, 70)


def with_pillow(pixels: np.ndarray, image: tuple[int, int], how: Preprocessing) -> np.ndarray:
    """The same chain in Pillow's words, channel by channel in floats."""
    height, width = pixels.shape[:2]
    grown = [round(side / how.crop) for side in image]
    if how.resize == "crop":
        scale = max(grown[0] / height, grown[1] / width)
        grown = [max(round(height * scale), grown[0]), max(round(width * scale), grown[1])]
    planes = [Image.fromarray(pixels[:, :, channel].astype(np.float32)) for channel in range(pixels.shape[2])]
    resized = np.stack([np.asarray(plane.resize((grown[1], grown[0]), FILTERS[how.interpolation])) for plane in planes])
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
def test_the_exact_chain_is_pillows(height, width, image, shape, crop, interpolation):
    # pictures longer than four times the crop lose their ends first, and with them a fraction of a pixel
    tall, wide = (round(side / crop) for side in image)
    scale = max(tall / height, wide / width)
    assume(shape == "squash" or (height * scale <= 4 * tall and width * scale <= 4 * wide))
    how = Preprocessing(resize=shape, crop=crop, interpolation=interpolation)
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    framed = Exact(image=image, preprocessing=how).frame(pixels)
    assert framed.shape == (3, *image)
    np.testing.assert_allclose(framed, with_pillow(pixels, image, how), atol=2e-3)


@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (3, 5000), (1, 1), (20, 900)])
@pytest.mark.parametrize("shape", ["crop", "squash", "letterbox"])
def test_long_thin_pictures_cost_no_more_than_others(size: tuple[int, int], shape: str):
    ramp = np.linspace(0, 255, max(size)).astype(np.uint8)
    pixels = np.repeat(np.resize(ramp, size if size[0] <= size[1] else size[::-1])[:, :, None], 3, axis=2)
    pixels = pixels if size[0] <= size[1] else pixels.swapaxes(0, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    framed = Exact(image=(224, 224), preprocessing=Preprocessing(resize=shape)).frame(np.ascontiguousarray(pixels))
    assert framed.shape == (3, 224, 224)
    if shape == "crop" and max(size) > 1:
        assert framed.mean().item() == pytest.approx(127, abs=3)  # the middle of the ramp
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # KiB, not 36 GB


def test_the_training_chain_says_what_it_does():
    assert Fast(image=(224, 224)).describe() == [
        "a random crop of 5% to 100% of the area, resized to 224 x 224 (bilinear, bytes)",
        "mirrored for half of the pictures",
    ]
    whole = Fast(image=(32, 32), crop=None, flip=False, whole=Preprocessing(crop=0.5, mean=(0.2,) * 3))
    assert whole.describe() == ["resize to cover 64 x 64, cut 32 x 32 from the centre (bilinear, antialiased, bytes)"]


def test_normalised_values_are_what_the_weights_expect():
    how = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), resize="squash")
    exact = Exact(image=(24, 40), preprocessing=how)
    expected = (scene() / 255 - np.array(how.mean)) / np.array(how.std)
    np.testing.assert_allclose(exact(scene()).permute(1, 2, 0), expected, atol=1e-5)


@given(height=sides, width=sides, image=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_a_letterbox_keeps_all_of_the_picture_and_its_shape(height: int, width: int, image: tuple[int, int]):
    exact = Exact(image=image, preprocessing=Preprocessing(resize="letterbox", interpolation="bilinear"))
    seen = exact(np.full((height, width, 3), 255, np.uint8))
    picture = (seen - 1).abs() < 1e-4  # white becomes 1, the mean colour 0
    assert (picture | (seen.abs() < 1e-6)).all()
    rows, columns = picture[0].any(1).sum().item(), picture[0].any(0).sum().item()
    assert (rows, columns) == (image[0], columns) or columns == image[1]  # touches two sides
    scale = min(image[0] / height, image[1] / width)
    assert rows == pytest.approx(max(height * scale, 1), abs=0.51)
    assert columns == pytest.approx(max(width * scale, 1), abs=0.51)


def test_the_chain_says_what_it_does():
    exact = Exact(image=(224, 224), preprocessing=Preprocessing(crop=0.875))
    assert exact.describe() == [
        "resize to cover 256 x 256, cut 224 x 224 from the centre (bicubic, antialiased, float32)",
        "scale to 0…1, subtract 0.5, divide by 0.5",
    ]


def test_deep_pictures_keep_their_depth_on_the_exact_path():
    deep = np.full((8, 8, 3), 100.25, np.float32)
    exact = Exact(image=(8, 8), preprocessing=Preprocessing(resize="squash"))
    torch.testing.assert_close(exact.frame(deep), torch.full((3, 8, 8), 100.25))
    assert Fast(image=(8, 8), crop=None, flip=False)(deep, DRAWS[0]).dtype == torch.uint8


@pytest.mark.parametrize("filter", FILTERS)
def test_real_photos_are_resized_as_pillow_does(filter: str, shared: Path):
    """Floats equal Pillow's floats; bytes, bilinear as in training, stay within a grey level of Pillow's bytes."""
    for pixels in photos(shared):
        picture = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        for size in ((96, 96), (128, 160), (224, 224)):
            floats = resize(picture.float(), size, filter)[0].clamp(0, 255)
            how = Preprocessing(resize="squash", interpolation=filter)
            np.testing.assert_allclose(floats, with_pillow(pixels, size, how), atol=1e-2)
            if filter == "bilinear":
                theirs = np.asarray(Image.fromarray(pixels).resize((size[1], size[0]), FILTERS[filter])).astype(int)
                ours = resize(picture, size, filter)[0]
                assert np.abs(ours.permute(1, 2, 0).numpy() - theirs).max() <= 1
                assert (ours - floats).abs().max() <= 1.01  # what the fast path costs, before normalisation


def photos(shared: Path) -> list[np.ndarray]:
    with tarfile.open(shared / "data" / "pets160.tar") as archive:
        members = [member for member in archive if member.isfile()][::150]
        return [decode(archive.extractfile(member).read()) for member in members]


def test_the_fast_chain_without_chance_is_pillows_resize():
    fast = Fast(image=(20, 30), crop=None, flip=False, whole=Preprocessing(resize="squash"))
    theirs = np.asarray(Image.fromarray(scene(50, 80)).resize((30, 20), Image.Resampling.BILINEAR)).astype(int)
    ours = fast(scene(50, 80), DRAWS[0]).permute(1, 2, 0).numpy()
    assert np.abs(ours - theirs).max() <= 1


@given(size=st.tuples(sides, sides), seed=st.integers(0, 99))
def test_crops_lie_inside_the_picture_and_are_never_empty(size: tuple[int, int], seed: int):
    draws = uniform(seed, 0, range(20), "view", 4)
    boxes = draw_boxes(draws, size, area=(0.01, 1.0), aspect=(3 / 4, 4 / 3))
    for box, own in zip(boxes, draws.tolist(), strict=True):
        np.testing.assert_allclose(draw_box(own, size, area=(0.01, 1.0), aspect=(3 / 4, 4 / 3)), box, atol=1e-9)
        left, top, right, bottom = whole_pixels(box)
        assert 0 <= left < right <= size[1]
        assert 0 <= top < bottom <= size[0]


def test_a_crop_is_the_box_that_was_drawn():
    fast = Fast(image=(24, 40), flip=False)
    for index in range(20):
        draws = Fast.draw(5, 2, [index])
        box = draw_boxes(np.array(draws)[:, 1:], (50, 80), area=fast.crop, aspect=fast.aspect)[0]
        piece = Image.fromarray(scene(50, 80)).crop(tuple(whole_pixels(box)))
        theirs = np.asarray(piece.resize((40, 24), Image.Resampling.BILINEAR)).astype(int)
        ours = fast(scene(50, 80), draws[0]).permute(1, 2, 0).numpy()
        assert np.abs(ours - theirs).max() <= 1


def test_half_of_the_pictures_are_flipped():
    fast = Fast(image=(24, 40), crop=None)
    upright = torch.from_numpy(scene()).permute(2, 0, 1)
    mirrored = upright.flip(-1)
    views = [fast(scene(), DRAWS[index]) for index in range(1000)]
    share = np.mean([torch.equal(view, mirrored) for view in views])
    assert share == pytest.approx(0.5, abs=0.05)
    assert all(torch.equal(view, mirrored) or torch.equal(view, upright) for view in views)
