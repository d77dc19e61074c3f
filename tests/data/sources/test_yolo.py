"""YOLO's text files of polygons, in the layouts of Ultralytics and of Roboflow."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.data.masks.sample_masks import SIZE, image, numbers, save, write_yolo
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.open import open_data

NAMES = "path: .\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n"


@pytest.mark.parametrize(
    ("images", "labels"),
    [("images/{}/{{}}.jpg", "labels/{}/{{}}.txt"), ("{}/images/{{}}.jpg", "{}/labels/{{}}.txt")],
)
def test_masks_are_those_that_the_polygons_were_made_from(images: str, labels: str, tmp_path: Path):
    write_yolo(tmp_path, images.format("train"), labels.format("train"), range(3))
    write_yolo(tmp_path, images.format("val"), labels.format("val"), range(3, 5))
    (tmp_path / "data.yaml").write_text(NAMES)
    data = open_data(tmp_path, task="auto")
    assert (data.task, data.classes) == ("segment", ("background", "cat", "dog"))
    for split, first in (("train", 0), ("val", 3)):
        stored = pickle.loads(pickle.dumps(data.splits[split]))
        for index in range(len(stored)):
            assert (stored.read_mask(index, SIZE) == numbers(first + index)).all()


def test_without_names_the_numbers_are_classes(tmp_path: Path):
    write_yolo(tmp_path, "images/{}.jpg", "labels/{}.txt", range(2))
    data = open_data(tmp_path, task="auto")
    assert data.classes == ("background", "class 0", "class 1")
    assert (data.splits["all"].read_mask(0, SIZE) == numbers(0)).all()


def test_names_are_read_from_a_yaml_file_of_any_name(tmp_path: Path):
    write_yolo(tmp_path, "images/{}.jpg", "labels/{}.txt", range(2))
    (tmp_path / "training.yaml").write_text("epochs: 3\n")
    (tmp_path / "damaged.yml").write_text("a line that is no key\n")
    (tmp_path / "coco8-seg.yaml").write_text(NAMES)
    assert open_data(tmp_path, task="auto").classes == ("background", "cat", "dog")
    (tmp_path / "other.yaml").write_text(NAMES.replace("cat", "wolf"))
    data = open_data(tmp_path, task="auto")
    assert data.classes == ("background", "class 0", "class 1")
    assert any("data.yaml beside the folders" in note for note in data.notes)


def test_an_empty_file_is_background_and_no_file_is_no_mask(tmp_path: Path):
    write_yolo(tmp_path, "images/{}.jpg", "labels/{}.txt", range(1))
    save(tmp_path / "images/empty.jpg", image(1))
    (tmp_path / "labels/empty.txt").write_text("")
    save(tmp_path / "images/none.jpg", image(2))
    split = open_data(tmp_path, task="auto").splits["all"]
    assert list(split.keys) == ["images/0.jpg", "images/empty.jpg", "images/none.jpg"]
    assert split.labels.tolist() == [0, 0, -1]
    assert not split.read_mask(1, SIZE).any()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.2 0.2", r"it is a box \(five numbers\); boxes are for detection"),
        ("0 0.1 0.1 0.5 0.5 0.9", "5 numbers: one coordinate is without the other"),
        ("0 0.1 0.1", "is not closed: it has 1 points"),
        ("7 0.1 0.1 0.5 0.5 0.9 0.1", "its class 7 is none of those in data.yaml"),
        ("0.5 0.1 0.1 0.5 0.5 0.9 0.1", r"its class 0.5 is none"),
        ("nan 0.1 0.1 0.5 0.5 0.9 0.1", "its class nan is none"),
        ("0 0.1 0.1 0.5 nan 0.9 0.1", "coordinate nan; they are from 0 to 1"),
        ("0 10 10 50 50 90 10", "coordinate 10; they are from 0 to 1, as shares of the image"),
        ("cat 0.1 0.1 0.5 0.5 0.9 0.1", "it is not numbers: cat 0.1"),
    ],
)
def test_a_bad_line_names_file_and_line_and_other_images_stay(line: str, message: str, tmp_path: Path):
    write_yolo(tmp_path, "images/{}.jpg", "labels/{}.txt", range(2))
    (tmp_path / "data.yaml").write_text(NAMES)
    with (tmp_path / "labels/0.txt").open("a") as file:
        file.write(f"{line}\n")
    split = open_data(tmp_path, task="auto").splits["all"]
    with pytest.raises(DataError, match=message) as error:
        split.read_mask(0, SIZE)
    assert str(error.value).startswith("mask labels/0.txt, line 3: ")
    assert (split.read_mask(1, SIZE) == numbers(1)).all()


def test_boxes_alone_are_no_masks(tmp_path: Path):
    save(tmp_path / "images/0.jpg", image(0))
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/0.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    data = open_data(tmp_path, task="auto")
    assert data.task == "classify"
    assert any("labels/0.txt has boxes and no areas" in note for note in data.notes)
    with pytest.raises(DataError, match="boxes are for detection"):
        open_data(tmp_path, task="segment")


def test_text_files_of_other_things_are_no_labels(tmp_path: Path):
    save(tmp_path / "images/0.jpg", image(0))
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/0.txt").write_text("a photo of a cat on the mat\n")
    assert open_data(tmp_path, task="auto").task == "classify"
