"""Trimaps: read from real PNG files, laid over the patch grid as Pillow would, compared with maps in NumPy."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitkit.data.preprocessing import Preprocessing
from vitkit.errors import ConfigError, DecodeError
from vitkit.paper.datasets import Datasets
from vitkit.paper.trimaps import outlined_pets, patch_shares, read_trimap, shares_inside


def png(pixels: np.ndarray, mode: str = "L") -> bytes:
    image = Image.fromarray(pixels.astype(np.uint8))
    if mode == "P":
        image = Image.frombytes("P", image.size, image.tobytes())
        image.putpalette([level for index in range(256) for level in (255 - index, index, 7)])
    file = io.BytesIO()
    image.convert(mode).save(file, "PNG")
    return file.getvalue()


def blob(height: int, width: int) -> np.ndarray:
    """Return a trimap with an ellipse, off the centre, and a border of three pixels around it."""
    y, x = np.mgrid[:height, :width]
    distance = np.hypot((y - 0.4 * height) / (0.3 * height), (x - 0.6 * width) / (0.2 * width))
    trimap = np.full((height, width), 2)
    trimap[distance < 1.1] = 3
    trimap[distance < 1] = 1
    return trimap


@pytest.mark.parametrize("mode", ["L", "P"])
def test_a_png_keeps_its_values_whatever_its_colours(mode):
    np.testing.assert_array_equal(read_trimap(png(blob(40, 50), mode)), blob(40, 50))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (png(np.zeros((4, 4))), "this one 0"),
        (png(np.full((4, 4), 255)), "this one 255"),
        (png(np.ones((4, 4)), "RGB"), "this PNG is RGB"),
        (b"no image", "not an image"),
    ],
)
def test_what_is_no_trimap_is_refused(content, reason):
    with pytest.raises(DecodeError, match=reason):
        read_trimap(content)


@given(
    seed=st.integers(0, 1000),
    count=st.integers(1, 3),
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_the_shares_are_those_of_a_loop_over_patches(seed, count, grid):
    generator = np.random.default_rng(seed)
    maps = generator.uniform(0, 1, (count, *grid)).astype(np.float32)
    inside = generator.uniform(0, 1, (count, *grid)).astype(np.float32)
    outside = (1 - inside) * generator.uniform(0, 1, (count, *grid)).astype(np.float32)  # the rest is border
    mass, area = shares_inside(maps, inside, outside)
    for image in range(count):
        on = off = object_area = background = 0.0
        for row in range(grid[0]):
            for column in range(grid[1]):
                weight = float(maps[image, row, column])
                on += weight * float(inside[image, row, column])
                off += weight * float(outside[image, row, column])
                object_area += float(inside[image, row, column])
                background += float(outside[image, row, column])
        # products in float32, sums in float64
        assert mass[image] == pytest.approx(on / (on + off), rel=1e-5)
        assert area[image] == pytest.approx(object_area / (object_area + background), rel=1e-5)


def test_a_uniform_map_has_the_mass_of_the_area_and_a_map_on_the_object_all_of_it():
    inside, outside = patch_shares(blob(64, 64).astype(np.uint8), (64, 64), (8, 8), Preprocessing())
    uniform, focused = np.ones((1, 8, 8), np.float32), (inside > 0.99).astype(np.float32)[None]
    mass, area = shares_inside(uniform, inside[None], outside[None])
    assert mass[0] == pytest.approx(area[0])
    assert shares_inside(focused, inside[None], outside[None])[0][0] == pytest.approx(1, abs=0.01)


def test_shares_at_the_image_size_are_the_means_of_patches():
    trimap = blob(32, 48).astype(np.uint8)
    inside, outside = patch_shares(trimap, (32, 48), (4, 6), Preprocessing())
    for value, found in ((1, inside), (2, outside)):
        expected = (trimap == value).reshape(4, 8, 6, 8).mean(axis=(1, 3))
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_trimap_goes_through_the_geometry_of_the_image_as_pillow_computes_it():
    trimap = blob(150, 200)
    inside, _ = patch_shares(trimap.astype(np.uint8), (64, 64), (8, 8), Preprocessing(crop=0.8))
    mask = Image.fromarray(np.where(trimap == 1, 255, 0).astype(np.uint8))
    resized = np.asarray(mask.resize((107, 80), Image.Resampling.BILINEAR), float) / 255  # 80 = 64 / 0.8
    centre = resized[8:72, 21:85]
    # Pillow rounds to grey levels, 1/255
    np.testing.assert_allclose(inside, centre.reshape(8, 8, 8, 8).mean(axis=(1, 3)), atol=1 / 255)


def write_pets(images: Path, trimaps: Path, count: int = 5) -> None:
    for folder in (images, trimaps):
        folder.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", (50, 40), (50 * number, 9, 9)).save(images / f"Abyssinian_{number}.jpg")
        (trimaps / f"Abyssinian_{number}.png").write_bytes(png(blob(40, 50)))
        (trimaps / f"._Abyssinian_{number}.png").write_bytes(b"as macOS leaves them in the authors' archive")
    (images / "Bengal_1.jpg").write_bytes((images / "Abyssinian_0.jpg").read_bytes())  # without a trimap


def test_images_and_trimaps_are_paired_by_name_as_published_and_in_class_folders(tmp_path):
    published = tmp_path / "published/oxford-iiit-pet"
    write_pets(published / "images", published / "annotations/trimaps")
    write_pets(tmp_path / "folders/pets/test/Abyssinian", tmp_path / "folders/trimaps")
    for name in ("published", "folders"):
        datasets = Datasets(tmp_path / name)
        chosen = outlined_pets(datasets, 2) + outlined_pets(datasets, 9, start=2)
        assert sorted(one.name for one in chosen) == [f"Abyssinian_{number}" for number in range(5)]
        np.testing.assert_array_equal(read_trimap(chosen[0].trimap), blob(40, 50))


def test_missing_trimaps_and_annotations_read_as_classes_are_errors(tmp_path):
    write_pets(tmp_path / "pets/images", tmp_path / "pets/annotations/trimaps")
    with pytest.raises(ConfigError, match="would be read as classes"):
        Datasets(tmp_path).find("pets")  # to train on
    (tmp_path / "pets/annotations").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="the trimaps of Oxford-IIIT Pets"):
        outlined_pets(Datasets(tmp_path), 1)
