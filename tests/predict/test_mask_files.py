"""Files of masks: numbers and colours in one PNG, and names that never collide."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitkit.data.masks.ignore import IGNORE
from vitkit.data.masks.palette import default_palette
from vitkit.pages.mask_overlay import WRONG, colour_mask, draw_errors, draw_mask, shrink_mask
from vitkit.predict.mask_files import class_shares, write_mask, write_overlay
from vitkit.predict.mask_names import mask_names, relative_names


def test_a_png_gives_numbers_to_numpy_and_colours_to_viewers(tmp_path: Path):
    mask = np.arange(256, dtype=np.uint8).reshape(8, 32)
    palette = default_palette(254)
    write_mask(tmp_path / "new" / "mask.png", mask, palette)
    with Image.open(tmp_path / "new" / "mask.png") as image:
        assert image.mode == "P"
        assert np.array_equal(np.asarray(image), mask)
        colours = np.asarray(image.convert("RGB")).reshape(-1, 3)
    assert [tuple(colour) for colour in colours[:254].tolist()] == [*palette]
    assert colours[IGNORE].tolist() == [255, 255, 255]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="file cannot be made"):
        write_mask(tmp_path / "file" / "mask.png", np.zeros((2, 2), np.uint8), ((0, 0, 0),))


def test_names_keep_the_folders_below_the_one_that_all_share():
    assert mask_names(["photos/a/x.jpg", "photos/b/x.jpg"]) == ["a/x.png", "b/x.png"]
    assert mask_names(["/data/photos/x.jpg"]) == ["x.png"]
    assert mask_names(["s3://bucket/a/x.jpg", "s3://bucket/y.jpg"]) == ["a/x.png", "y.png"]
    assert relative_names(["photos/a/x.jpg", "photos/y.jpg"]) == ["a/x.jpg", "y.jpg"]


def test_images_of_the_same_stem_keep_their_ending():
    assert mask_names(["a/x.jpg", "a/x.png", "a/y.png"]) == ["x.jpg.png", "x.png.png", "y.png"]
    assert mask_names(["X.jpg", "x.png"]) == ["X.jpg.png", "x.png.png"]
    assert mask_names(["x.jpg", "x.jpg"]) == ["x.jpg.png", "x.jpg-2.png"]


def test_no_name_leads_out_of_the_folder():
    for name in mask_names(["../../etc/x.jpg", "../y.jpg", "/abs/./z.jpg", "https://host/../w.jpg"]):
        assert ".." not in name.split("/")
        assert not os.path.isabs(name)


parts = st.sampled_from(["a", "A", "b.jpg", "b", "b.png", "b.png.png", "..", ".", "ü", "u\u0308", "x" * 300])


@given(st.lists(st.lists(parts, min_size=1, max_size=3).map("/".join), max_size=8))
def test_names_are_distinct_whatever_the_case_and_fit_a_file_system(names):
    chosen = mask_names(names)
    assert len({name.casefold() for name in chosen}) == len(names)
    assert all(len(os.fsencode(part)) <= 255 for name in chosen for part in name.split("/")[-1:])


def test_shares_come_in_the_order_of_their_size():
    mask = np.array([[0, 2, 2], [2, IGNORE, 0]], np.uint8)
    assert class_shares(mask, ("sky", "road", "car")) == {"car": 0.5, "sky": pytest.approx(1 / 3)}


def test_an_overlay_has_the_size_of_the_image(tmp_path: Path):
    pixels = np.full((9, 13, 3), 100, np.uint8)
    write_overlay(tmp_path / "x.jpg", pixels, np.ones((9, 13), np.uint8), ((0, 0, 0), (200, 0, 0)))
    with Image.open(tmp_path / "x.jpg") as image:
        assert image.size == (13, 9)
        assert np.asarray(image)[4, 6, 0] > 140


def test_drawn_masks_show_colours_errors_and_ignored_pixels():
    pixels = np.full((8, 8, 1), 90.4, np.float32)  # grey, as deep images are decoded
    target = np.zeros((8, 8), np.uint8)
    target[0], predicted = IGNORE, target.copy()
    predicted[0] = 0
    predicted[7] = 1
    palette = ((10, 20, 30), (200, 100, 0))
    assert colour_mask(predicted, palette)[7, 0].tolist() == [200, 100, 0]
    drawn = draw_mask(pixels, target, palette, opacity=1.0)
    assert drawn[4, 4].tolist() == [10, 20, 30]
    assert len(np.unique(drawn[0], axis=0)) == 2  # stripes
    errors = draw_errors(pixels, predicted, target)
    assert np.abs(errors[7, 0].astype(int) - WRONG).max() < 60
    assert np.ptp(errors[4, 4]) == 0


def test_a_mask_shrinks_without_new_classes():
    mask = np.repeat(np.array([[0, 0, 5, 5]], np.uint8), 4, axis=0)
    assert shrink_mask(mask, (2, 2)).tolist() == [[0, 5], [0, 5]]
    assert shrink_mask(mask, (4, 4)).tolist() == mask.tolist()
