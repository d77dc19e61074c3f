"""`vitkit check` for segmentation data: what it finds, and the contact sheet."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.data.masks.sample_masks import SIZE, image, numbers, save, write_pairs
from vitkit.cli.main import main
from vitkit.data.check import check
from vitkit.data.contact_sheet import contact_sheet
from vitkit.data.mask_sheet import draw_mask
from vitkit.data.masks.ignore import IGNORE
from vitkit.data.sources.open import open_data


def faulty(root: Path) -> Path:
    """Write data with each fault that a check should name."""
    write_pairs(root, "train/images/{}.png", "train/masks/{}.png", count=12)
    write_pairs(root, "test/images/{}.png", "test/masks/{}.png", count=3, first=20)
    (root / "classes.txt").write_text("background\ncat\ndog\nbird\n")
    save(root / "train/masks/0.png", numbers(0, (5, 5)))
    wrong = numbers(1)
    wrong[0, 0] = 9
    save(root / "train/masks/1.png", wrong)
    save(root / "train/masks/2.png", np.full(SIZE, IGNORE, np.uint8))
    save(root / "train/images/lonely.png", image(50))
    save(root / "train/masks/orphan.png", numbers(51))
    save(root / "test/images/20.png", image(3))  # as in train
    return root


def test_a_check_names_every_fault(tmp_path: Path):
    report = check(open_data(faulty(tmp_path), task="auto"))
    assert report.masks is not None
    assert [key for key, _ in report.masks.bad] == ["train/images/0.png", "train/images/1.png"]
    assert "it is 5 x 5 (height x width), its image 12 x 16" in report.masks.bad[0][1]
    assert "1 pixel has the number 9" in report.masks.bad[1][1]
    assert report.masks.all_ignored == ["train/images/2.png"]
    assert report.masks.without == {"train": 1}
    assert ("train/images/3.png", "test/images/20.png", "identical") in report.leaks
    assert "2 of 15 masks cannot be used" in report.problems
    assert "train has no pixel of bird, which cannot be learned" in report.problems
    assert any("orphan.png" in remark for remark in report.remarks)
    assert any("1 image without a mask" in remark for remark in report.remarks)
    assert not report.ok
    assert not report.fit_refuses


def test_shares_are_those_of_a_count_of_all_pixels(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.png", "masks/{}.png", count=12)
    ignored = numbers(4)
    ignored[0] = IGNORE
    save(tmp_path / "masks/4.png", ignored)
    report = check(open_data(tmp_path, task="auto"))
    masks = np.stack([ignored if seed == 4 else numbers(seed) for seed in range(12)])
    counted = masks[masks != IGNORE]
    assert report.masks is not None
    for number, name in enumerate(("class 0", "class 1", "class 2")):
        cover = report.masks.cover["all"][name]
        assert cover.share == pytest.approx((counted == number).mean())
        assert cover.images == (masks == number).any(axis=(1, 2)).sum()
    assert report.masks.ignored["all"] == pytest.approx((masks == IGNORE).mean())
    assert report.ok


def test_classes_that_cover_almost_nothing_are_said(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.png", "masks/{}.png", count=12)
    rare = numbers(0)
    rare[-1, -1] = 3
    save(tmp_path / "masks/0.png", rare)
    report = check(open_data(tmp_path, task="auto"))
    assert "1 class covers almost none of the pixels of all: class 3 (0.043 %)" in report.remarks
    assert "1 class is in fewer than 10 images of all: class 3 (1)" in report.remarks


def test_large_classes_of_few_images_do_not_cover_almost_nothing(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.png", "masks/{}.png", count=4)
    report = check(open_data(tmp_path, task="auto"))
    assert not any("almost none" in remark for remark in report.remarks)
    assert any("3 classes are in fewer than 10 images of all" in remark for remark in report.remarks)


def test_a_split_whose_masks_ignore_every_pixel_is_a_problem(tmp_path: Path):
    write_pairs(tmp_path, "train/images/{}.png", "train/masks/{}.png", count=12)
    write_pairs(tmp_path, "val/images/{}.png", "val/masks/{}.png", count=3, first=20)
    for number in range(20, 23):
        save(tmp_path / f"val/masks/{number}.png", np.full(SIZE, IGNORE, np.uint8))
    report = check(open_data(tmp_path, task="auto"))
    assert report.problems == ["val has no pixel of any class: nothing can be scored on it"]


def test_the_command_prints_classes_and_bad_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sheet = tmp_path / "sheet.png"
    with pytest.raises(SystemExit) as stopped:
        main(["check", str(faulty(tmp_path / "data")), "--sheet", str(sheet)])
    assert stopped.value.code == 1
    text = capsys.readouterr().out
    assert "4 classes of pixels: segmentation" in text
    assert "bad masks  train/images/0.png: mask train/masks/0.png: it is 5 x 5" in text
    assert "of pixels" in text
    assert Image.open(sheet).size[0] > 500
    with pytest.raises(SystemExit):
        main(["check", str(tmp_path / "data"), "--sheet", str(sheet), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["masks"]["cover"]["train"]["dog"]["images"] == 9
    assert found["task"] == "segment"


def test_task_chooses_how_a_folder_is_checked(tmp_path: Path):
    write_pairs(tmp_path / "data", "images/{}.png", "masks/{}.png", count=3)
    assert vitkit.check(tmp_path / "data").task == "segment"
    assert vitkit.check(tmp_path / "data", task="classify").classes == ("images", "masks")


def test_the_sheet_has_the_colours_of_classes_over_the_images(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.png", "masks/{}.png", count=2)
    (tmp_path / "class_dict.csv").write_text("name,r,g,b\nground,0,0,0\ncat,255,0,0\ndog,0,255,0\n")
    data = open_data(tmp_path, task="auto")
    pixels = np.asarray(contact_sheet(data, (32, 32), "crop", 3)).reshape(-1, 3)
    for colour in data.palette:
        assert (pixels == colour).all(axis=1).sum() >= 100  # in the legend


def test_drawing_mixes_image_and_colour_and_stripes_ignored_pixels():
    mask = np.zeros((8, 8), np.uint8)
    mask[:, 4:] = IGNORE
    drawn = np.asarray(draw_mask(Image.new("RGB", (8, 8), (100, 100, 100)), mask, ((200, 0, 50),), opacity=0.5))
    assert (drawn[:, :4] == (150, 50, 75)).all()
    assert len(np.unique(drawn[:, 5:].reshape(-1, 3), axis=0)) == 2


def test_a_sheet_is_drawn_where_masks_are_bad(tmp_path: Path):
    assert contact_sheet(open_data(faulty(tmp_path), task="auto"), (32, 32), "crop", 3).size[1] > 100
