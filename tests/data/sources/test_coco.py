"""COCO's JSON, in the layouts of COCO and of Roboflow."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pycocotools.coco
import pytest
from hypothesis import HealthCheck, given, settings

from tests.damaged_json import damaged_text
from tests.data.masks.sample_masks import SIZE, coco_json, image, numbers, save, write_json
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.open import open_data
from vitkit.errors import VitkitError

LAYOUTS = {
    "COCO": ("annotations/instances_{}2017.json", "{}2017"),
    "COCO in images": ("annotations/instances_{}2017.json", "images/{}2017"),
    "Roboflow": ("{}/_annotations.coco.json", "{}"),
    "images beside": ("{}.json", "images"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", ["polygon", "rle", "counts"])
def test_masks_are_those_that_the_annotations_were_made_from(layout: str, form: str, tmp_path: Path):
    file, folder = LAYOUTS[layout]
    for split, seeds in {"train": range(3), "val": range(3, 5)}.items():
        for seed in seeds:
            save(tmp_path / folder.format(split) / f"{seed}.jpg", image(seed))
        write_json(tmp_path / file.format(split), coco_json(seeds, form))
    data = open_data(tmp_path, task="auto")
    assert data.task == "segment"
    assert data.classes == ("background", "cat", "dog")  # by the ids 3 and 7
    assert any("the later annotation of the file counts" in note for note in data.notes)
    for split, seeds in {"train": range(3), "val": range(3, 5)}.items():
        images = pickle.loads(pickle.dumps(data.splits[split]))
        assert len(images) == len(seeds)
        for index, seed in enumerate(seeds):
            assert (images.read_mask(index, SIZE) == numbers(seed)).all()


def test_masks_equal_those_that_pycocotools_draws(tmp_path: Path):
    random = np.random.default_rng(0)
    content = coco_json(range(4))
    for annotation in content["annotations"]:
        corners = random.uniform(0, 1, (random.integers(1, 3), 5, 2)) * (SIZE[1], SIZE[0])
        annotation["segmentation"] = corners.reshape(len(corners), -1).tolist()
    for seed in range(4):
        save(tmp_path / f"images/{seed}.jpg", image(seed))
    path = write_json(tmp_path / "annotations/instances.json", content)
    theirs = pycocotools.coco.COCO(str(path))
    split = open_data(tmp_path, task="auto").splits["all"]
    for index in range(4):
        expected = np.zeros(SIZE, np.uint8)
        for annotation in theirs.imgToAnns[100 + index]:
            expected[theirs.annToMask(annotation) > 0] = {3: 1, 7: 2}[annotation["category_id"]]
        assert (split.read_mask(index, SIZE) == expected).all()


def test_the_json_file_itself_is_data(tmp_path: Path):
    for seed in range(2):
        save(tmp_path / f"train2017/{seed}.jpg", image(seed))
    path = write_json(tmp_path / "annotations/instances_train2017.json", coco_json(range(2)))
    data = open_data(path, task="auto")
    assert list(data.splits["train"].keys) == ["train2017/0.jpg", "train2017/1.jpg"]
    assert (data.splits["train"].read_mask(1, SIZE) == numbers(1)).all()


def test_a_category_called_background_is_class_0_and_void_is_ignored(tmp_path: Path):
    save(tmp_path / "0.jpg", image(0))
    content = coco_json(range(1))
    content["categories"] = [{"id": 7, "name": "void"}, {"id": 3, "name": "cat"}, {"id": 9, "name": "Background"}]
    write_json(tmp_path / "coco.json", content)
    data = open_data(tmp_path, task="auto")
    assert data.classes == ("Background", "cat")
    assert (data.splits["all"].read_mask(0, SIZE) == np.array([0, 1, 255])[numbers(0)]).all()


def test_the_category_that_roboflow_puts_above_the_others_is_no_class(tmp_path: Path):
    save(tmp_path / "0.jpg", image(0))
    content = coco_json(range(1))
    for category in content["categories"]:
        category["supercategory"] = "pets"
    content["categories"].insert(0, {"id": 0, "name": "pets", "supercategory": "none"})
    write_json(tmp_path / "_annotations.coco.json", content)
    assert open_data(tmp_path, task="auto").classes == ("background", "cat", "dog")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("categories"), 'annotations/a.json has no list "categories"'),
        (lambda c: c.pop("annotations"), 'annotations/a.json has no list "annotations"'),
        (lambda c: c["images"][1].pop("file_name"), r"annotations/a.json is damaged: images\[1\].file_name is missing"),
        (lambda c: c["images"][0].update(id=None), r"images\[0\].id should be"),
        (lambda c: c["images"][0].update(height="x"), r"images\[0\].height should be an integer"),
        (lambda c: c["categories"][0].pop("name"), r"categories\[0\].name is missing"),
        (lambda c: c["annotations"][1].pop("image_id"), r"1 annotation without an image_id: annotations\[1\]"),
        (lambda c: c["annotations"].append("nonsense"), "1 annotation without an image_id"),
        (lambda c: c["images"][0].update(id=101), "the same id to two images"),
        (lambda c: [one.update(file_name="x.jpg") for one in c["images"]], "none of the images of annotations/a.json"),
    ],
)
def test_a_file_with_missing_keys_is_an_error_that_names_them(change: Any, message: str, tmp_path: Path):
    save(tmp_path / "images/0.jpg", image(0))
    content = coco_json(range(2))
    change(content)
    write_json(tmp_path / "annotations/a.json", content)
    with pytest.raises(DataError, match=message) as error:
        open_data(tmp_path, task="auto")
    assert {"expected", "try"} & error.value.rows.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("segmentation"), "it has no segmentation"),
        (lambda a: a.update(segmentation=[]), "it has no segmentation"),
        (lambda a: a.pop("category_id"), "it has no category_id"),
        (lambda a: a.update(category_id=55), "its category_id 55 is none of the file's categories"),
        (lambda a: a.update(segmentation=[[1, 1, 5, 5]]), "its polygon 1 is not closed: it has 2 points"),
        (lambda a: a.update(segmentation=[[1, 1, 5, 5, 2]]), "5 numbers: one coordinate is without the other"),
        (lambda a: a.update(segmentation={"size": [3, 3], "counts": [9]}), "its RLE is 3 x 3"),
        (lambda a: a.update(segmentation={"size": [12, 16], "counts": [9]}), "add up to 9 pixels"),
        (lambda a: a.update(segmentation={"size": [12, 16], "counts": "\x00"}), "not COCO's compressed text"),
    ],
)
def test_a_bad_annotation_names_file_image_and_id_and_other_images_stay(change: Any, message: str, tmp_path: Path):
    for seed in range(2):
        save(tmp_path / f"images/{seed}.jpg", image(seed))
    content = coco_json(range(2))
    change(content["annotations"][1])
    write_json(tmp_path / "annotations/a.json", content)
    split = open_data(tmp_path, task="auto").splits["all"]
    with pytest.raises(DataError, match=message) as error:
        split.read_mask(0, SIZE)
    assert str(error.value).startswith("mask annotations/a.json, image 100 (0.jpg), annotation 2: ")
    assert (split.read_mask(1, SIZE) == numbers(1)).all()


def test_an_image_of_another_size_than_the_file_says_is_an_error(tmp_path: Path):
    save(tmp_path / "0.jpg", image(0, (20, 30)))
    write_json(tmp_path / "coco.json", coco_json(range(1)))
    with pytest.raises(DataError, match=r"image 100 \(0.jpg\): the file says 12 x 16 .*, its image is 20 x 30"):
        open_data(tmp_path, task="auto").splits["all"].read_mask(0, (20, 30))


def test_what_is_skipped_is_said(tmp_path: Path):
    save(tmp_path / "0.jpg", image(0))
    content = coco_json(range(2))  # 1.jpg is not there
    content["annotations"].append({"id": 99, "image_id": 12345, "category_id": 3})
    write_json(tmp_path / "coco.json", content)
    data = open_data(tmp_path, task="auto")
    assert "1 image of coco.json cannot be found, skipped: 1.jpg" in data.notes
    assert any("1 annotation without an image of the file" in note for note in data.notes)
    assert len(data.splits["all"]) == 1


def test_boxes_alone_are_no_masks(tmp_path: Path):
    save(tmp_path / "cat/0.jpg", image(0))
    content = coco_json(range(1))
    for annotation in content["annotations"]:
        annotation.update(segmentation=[], bbox=[1, 2, 3, 4])
    path = write_json(tmp_path / "annotations/a.json", content)
    data = open_data(tmp_path, task="auto")
    assert data.task == "classify"
    assert any("annotations/a.json has boxes and no areas" in note for note in data.notes)
    for source in (path, tmp_path):
        with pytest.raises(DataError, match="boxes are for detection, which vitkit does not do"):
            open_data(source, task="segment")


def test_two_files_for_one_split_are_an_error(tmp_path: Path):
    save(tmp_path / "0.jpg", image(0))
    for name in ("coco_a.json", "coco_b.json"):
        write_json(tmp_path / name, coco_json(range(1)))
    with pytest.raises(DataError, match=r"two COCO files for all: coco_a.json and coco_b.json"):
        open_data(tmp_path, task="auto")


def test_json_of_other_tools_beside_class_folders_is_not_looked_into(tmp_path: Path):
    save(tmp_path / "cat/0.jpg", image(0))
    write_json(tmp_path / "export.json", {"info": {"tool": "x"}, "images": 3})
    write_json(tmp_path / "settings.json", {"a": 1})
    assert open_data(tmp_path, task="auto").task == "classify"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(damaged_text(coco_json(range(1))))
def test_a_damaged_file_is_masks_or_an_error(tmp_path: Path, text: bytes):
    save(tmp_path / "images/0.jpg", image(0))
    (tmp_path / "annotations").mkdir(exist_ok=True)
    (tmp_path / "annotations/a.json").write_bytes(text)
    with contextlib.suppress(VitkitError):
        data = open_data(tmp_path, task="auto")
        for split in data.splits.values():
            for index in split.rows_with_labels().tolist() if data.task == "segment" else ():
                assert split.read_mask(index, SIZE).shape == SIZE
