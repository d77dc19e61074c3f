"""Folders of images and masks, in the layouts that people and published datasets have."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.masks.sample_masks import SIZE, image, numbers, save, write_pairs
from vitkit.data.contents import Reading, changed_images, contents_record
from vitkit.data.masks.ignore import IGNORE
from vitkit.data.partition import partition
from vitkit.data.shard_writer import write_shards
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.open import open_data
from vitkit.data.training_images import join_validation

LAYOUTS = {
    "folders": [("images/{}.jpg", "masks/{}.png", "all")],
    "VOC's names": [("JPEGImages/{}.jpg", "SegmentationClass/{}.png", "all")],
    "weak names": [("images/{}.jpg", "labels/{}.png", "all")],
    "annotations": [("images/{}.jpg", "annotations/{}.png", "all")],
    "splits above": [
        ("train/images/{}.jpg", "train/masks/{}.png", "train"),
        ("valid/images/{}.jpg", "valid/masks/{}.png", "val"),
    ],
    "splits below": [
        ("images/training/{}.jpg", "annotations/training/{}.png", "train"),
        ("images/validation/{}.jpg", "annotations/validation/{}.png", "val"),
    ],
    "SegNet's": [("train/{}.png", "trainannot/{}.png", "train"), ("test/{}.png", "testannot/{}.png", "test")],
    "split_masks": [("train/{}.jpg", "train_labels/{}_L.png", "train"), ("val/{}.jpg", "val_labels/{}_L.png", "val")],
    "Cityscapes": [
        ("leftImg8bit/train/a/{}_leftImg8bit.png", "gtFine/train/a/{}_gtFine_labelIds.png", "train"),
        ("leftImg8bit/val/b/{}_leftImg8bit.png", "gtFine/val/b/{}_gtFine_labelIds.png", "val"),
    ],
    "suffix in the same folder": [("{}.png", "{}_mask.png", "all")],
    "ending in the same folder": [("train/{}.jpg", "train/{}.png", "train"), ("test/{}.jpg", "test/{}.png", "test")],
    "name with its ending": [("images/{}.jpg", "masks/{}.jpg.png", "all")],
    "a folder around both": [("data/images/{}.jpg", "data/masks/{}.png", "all")],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("task", ["auto", "segment"])
def test_masks_are_found_and_read_in_every_layout(layout: str, task: str, tmp_path: Path):
    for first, (images, masks, _) in enumerate(LAYOUTS[layout]):
        write_pairs(tmp_path, images, masks, first=3 * first)
    data = open_data(tmp_path, task=task)  # type: ignore[arg-type]
    assert data.task == "segment"
    assert data.classes == ("class 0", "class 1", "class 2")
    assert any("masks found for segmentation" in note for note in data.notes)
    assert {split: len(images) for split, images in data.splits.items()} == {name: 3 for *_, name in LAYOUTS[layout]}
    for first, (images, _, name) in enumerate(LAYOUTS[layout]):
        split = pickle.loads(pickle.dumps(data.splits[name]))  # as a data worker gets it
        assert list(split.keys) == [images.format(seed) for seed in range(3 * first, 3 * first + 3)]
        for index in range(3):
            assert (split.read_mask(index, SIZE) == numbers(3 * first + index)).all()
        assert (split.select([2, 0]).read_mask(0, SIZE) == numbers(3 * first + 2)).all()


CLASS_FOLDERS = {
    "classes": ["cat/1.jpg", "dog/1.jpg", "dog/2.jpg"],
    "faces with and without": ["mask/1.jpg", "no_mask/1.jpg", "mask/2.jpg"],
    "classes called images and labels": ["images/1.jpg", "labels/1.jpg", "labels/2.jpg"],
    "photos called images and labels, named alike": ["images/1.png", "labels/1.png"],
    "splits": ["train/cat/1.jpg", "train/label/1.jpg", "test/cat/1.jpg"],
    "each photo as PNG, too": ["cat/1.jpg", "cat/1.png", "dog/2.jpg", "dog/2.png"],
    "names that end like masks": ["cat/a.png", "cat/a_L.png", "dog/b.png", "dog/b_L.png"],
    "a flat folder": ["1.jpg", "2.jpg"],
}


@pytest.mark.parametrize("name", CLASS_FOLDERS)
def test_class_folders_without_masks_stay_classification(name: str, tmp_path: Path):
    for seed, path in enumerate(CLASS_FOLDERS[name]):
        save(tmp_path / path, image(seed))
    as_asked, found = open_data(tmp_path, task="classify"), open_data(tmp_path, task="auto")
    assert found.task == "classify"
    assert (found.kind, found.classes, found.notes) == (as_asked.kind, as_asked.classes, as_asked.notes)
    for split in found.splits:
        assert list(found.splits[split].keys) == list(as_asked.splits[split].keys)
        assert found.splits[split].labels.tolist() == as_asked.splits[split].labels.tolist()  # type: ignore[union-attr]
    with pytest.raises(DataError, match="has no masks for segmentation") as error:
        open_data(tmp_path, task="segment")
    assert "images/a.jpg with masks/a.png" in str(error.value)
    assert "YOLO's text" in str(error.value)


def test_classify_reads_folders_as_classes_where_there_are_masks(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png")
    data = open_data(tmp_path, task="classify")
    assert (data.task, data.classes) == ("classify", ("images", "masks"))


def test_segmentation_of_a_source_that_cannot_hold_masks_is_an_error():
    with pytest.raises(DataError, match="fashion has no masks for segmentation"):
        open_data("fashion", task="segment")


def camvid(root: Path) -> Data:
    for split, names in {"train": ["0001TP_006690", "0016E5_04410"], "test": ["Seq05VD_f00000"]}.items():
        for seed, name in enumerate(names):
            save(root / split / f"{name}.png", image(seed))
            mask = numbers(seed)
            mask[-1] = 11
            save(root / f"{split}annot" / f"{name}.png", mask)
    (root / "train.txt").write_text("/SegNet/CamVid/train/0001TP_006690.png /SegNet/CamVid/trainannot/…\n")
    return open_data(root, task="auto")


def test_camvid_has_its_names_and_ignores_void(tmp_path: Path):
    data = camvid(tmp_path)
    assert data.classes[:3] == ("sky", "building", "pole")
    assert len(data.classes) == len(data.palette) == 11
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 2, "test": 1}
    assert (data.splits["test"].read_mask(0, SIZE)[-1] == IGNORE).all()
    assert any("recognised as CamVid" in note for note in data.notes)


def test_oxford_pets_as_published_ignores_the_border(tmp_path: Path):
    for seed, name in enumerate(["Abyssinian_1", "Abyssinian_2", "beagle_1", "beagle_9"]):
        save(tmp_path / f"images/{name}.jpg", image(seed))
        save(tmp_path / f"annotations/trimaps/{name}.png", numbers(seed) + 1)
    (tmp_path / "annotations/README").write_text("OXFORD-IIIT PET Dataset")
    (tmp_path / "annotations/list.txt").write_text("#Image CLASS-ID SPECIES BREED ID\n")
    (tmp_path / "annotations/trainval.txt").write_text("Abyssinian_2 1 1 1\nbeagle_1 2 2 1\n")
    (tmp_path / "annotations/test.txt").write_text("Abyssinian_1 1 1 1\n")
    data = open_data(tmp_path, task="auto")
    assert data.classes == ("animal", "background")
    assert list(data.splits["trainval"].keys) == ["images/Abyssinian_2.jpg", "images/beagle_1.jpg"]
    assert list(data.splits["test"].keys) == ["images/Abyssinian_1.jpg"]
    assert (data.splits["test"].read_mask(0, SIZE) == np.array([0, 1, IGNORE])[numbers(0)]).all()
    assert any("1 image is in none of annotations/test.txt, annotations/trainval.txt, skipped" in n for n in data.notes)


def test_pascal_voc_has_its_names_and_the_splits_of_its_lists(tmp_path: Path):
    write_pairs(tmp_path, "JPEGImages/{}.jpg", "SegmentationClass/{}.png", count=4)
    save(tmp_path / "JPEGImages/2007_1.jpg", image(9))
    for name, rows in {"train": "0\n1\n", "val": "2\n3\n", "trainval": "0\n1\n2\n3\n"}.items():
        path = tmp_path / f"ImageSets/Segmentation/{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rows)
    data = open_data(tmp_path, task="auto")
    assert data.classes[15] == "person"
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 2, "val": 2}


def test_names_of_classes_are_read_from_a_file_beside_the_masks(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png")
    (tmp_path / "classes.txt").write_text("void\ncat\ndog\n")
    data = open_data(tmp_path, task="auto")
    assert data.classes == ("cat", "dog")
    assert (data.splits["all"].read_mask(0, SIZE) == np.array([IGNORE, 0, 1])[numbers(0)]).all()
    assert "pixels of these classes are ignored: void (0)" in data.notes
    assert "names of classes from classes.txt" in data.notes


def test_colours_have_the_classes_of_a_table(tmp_path: Path):
    colours = np.array([(0, 0, 0), (200, 0, 10), (10, 200, 255)], np.uint8)
    for seed in range(2):
        save(tmp_path / f"train/{seed}.jpg", image(seed))
        save(tmp_path / f"train_labels/{seed}.png", colours[numbers(seed)])
    (tmp_path / "class_dict.csv").write_text("name,r,g,b\ndog,10,200,255\nbackground,0,0,0\ncat,200,0,10\n")
    data = open_data(tmp_path, task="auto")
    assert data.classes == ("dog", "background", "cat")
    assert data.palette == ((10, 200, 255), (0, 0, 0), (200, 0, 10))
    assert (data.splits["train"].read_mask(0, SIZE) == np.array([1, 2, 0])[numbers(0)]).all()


def test_images_without_masks_and_masks_without_images_are_said(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png")
    save(tmp_path / "images/more.jpg", image(7))
    save(tmp_path / "masks/other.png", numbers(7))
    data = open_data(tmp_path, task="auto")
    split = data.splits["all"]
    assert split.labels.tolist() == [0, 0, 0, -1]
    assert "all has 1 image without a mask, which counts nowhere" in data.notes
    assert "1 mask without an image, skipped: masks/other.png" in data.notes
    with pytest.raises(DataError, match=r"images/more.jpg has no mask"):
        split.read_mask(3, SIZE)


def test_bad_masks_are_errors_of_their_own_and_the_others_stay(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png", count=6)
    (tmp_path / "classes.txt").write_text("background\ncat\ndog\n")
    save(tmp_path / "masks/0.png", numbers(0, (8, 9)))
    save(tmp_path / "masks/1.png", numbers(1).T.copy())
    (tmp_path / "masks/2.png").write_bytes(b"no image")
    wrong = numbers(3)
    wrong[5, 5] = 77
    save(tmp_path / "masks/3.png", wrong)
    split = open_data(tmp_path, task="auto").splits["all"]
    (tmp_path / "masks/4.png").unlink()
    messages = []
    for index in range(5):
        with pytest.raises(DataError) as error:
            split.read_mask(index, SIZE)
        messages.append(str(error.value))
    assert messages[0].startswith(
        "mask masks/0.png: it is 8 x 9 (height x width), its image 12 x 16; resize the mask by nearest"
    )
    assert "mask masks/1.png: it is 16 x 12" in messages[1]
    assert "on its side" in messages[1]
    assert messages[2] == "mask masks/2.png: not an image in any supported format."
    assert "mask masks/3.png: 1 pixel has the number 77, of no class in classes.txt" in messages[3]
    assert messages[4] == "mask masks/4.png: cannot be read: No such file or directory."
    assert (split.read_mask(5, SIZE) == numbers(5)).all()


def test_the_values_of_jpegs_are_no_classes(tmp_path: Path):
    """JPEG makes a dozen grey levels of two: as classes they would be noise, and 255 would be ignored."""
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png", count=3)
    binary = np.kron([[0, 255], [255, 0]], np.ones((5, 8))).astype(np.uint8)[:, ::-1]
    binary = np.pad(binary, ((1, 1), (0, 0)))
    save(tmp_path / "masks/2.jpg", binary)
    assert len(np.unique(np.asarray(Image.open(tmp_path / "masks/2.jpg")))) > 5
    (tmp_path / "masks/2.png").unlink()
    data = open_data(tmp_path, task="auto")
    assert data.classes == ("class 0", "class 1", "class 2")
    with pytest.raises(DataError, match=r"mask masks/2.jpg: it is a JPEG file, .* save masks as PNG"):
        data.splits["all"].read_mask(2, SIZE)
    for seed in range(2):
        (tmp_path / f"masks/{seed}.png").unlink()
        save(tmp_path / f"masks/{seed}.jpg", binary)
    with pytest.raises(DataError, match="are JPEG files, and JPEG changes values near edges") as error:
        open_data(tmp_path, task="auto")
    assert "masks as PNG" in str(error.value)


def test_the_mask_of_a_turned_photo_has_the_size_of_the_upright_image(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6
    save(tmp_path / "images/0.jpg", image(0, (16, 12)), exif=exif)  # upright: 12 x 16
    save(tmp_path / "masks/0.png", numbers(0))
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png", first=1)
    assert (open_data(tmp_path, task="auto").splits["all"].read_mask(0, SIZE) == numbers(0)).all()


def test_classes_of_a_model_are_matched_by_name_in_the_masks(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png")
    stored = numbers(0)
    stored[-1] = IGNORE
    save(tmp_path / "masks/0.png", stored)
    (tmp_path / "classes.txt").write_text("background\ncat\ndog\n")
    matched, missing, extra = open_data(tmp_path, task="auto").with_classes(["dog", "bird", "background"])
    assert (missing, extra) == (("bird",), ("cat",))
    assert matched.classes == ("dog", "bird", "background")
    assert len(matched.palette) == 3
    mask = pickle.loads(pickle.dumps(matched.splits["all"])).read_mask(0, SIZE)
    assert (mask == np.where(stored == IGNORE, IGNORE, np.array([2, IGNORE, 0])[numbers(0)])).all()


def test_images_are_held_out_and_joined_with_their_masks(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png", count=10)
    divided = partition(open_data(tmp_path, task="auto"), objective="segment")
    assert (len(divided.train), divided.test and len(divided.test)) == (8, 2)
    assert "held out (20% of the images)" in divided.description[1]
    for split in (divided.train, divided.test):
        assert split is not None
        for index, key in enumerate(split.keys):
            assert (split.read_mask(index, SIZE) == numbers(int(Path(key).stem))).all()
    shutil.rmtree(tmp_path / "images")
    shutil.rmtree(tmp_path / "masks")
    for first, split_name in enumerate(("train", "val", "test")):
        write_pairs(tmp_path, f"{split_name}/images/{{}}.jpg", f"{split_name}/masks/{{}}.png", first=3 * first)
    joined = join_validation(open_data(tmp_path, task="auto")).splits["train"]
    assert [int(Path(key).stem) for key in joined.keys] == [0, 1, 2, 3, 4, 5]
    assert all((joined.read_mask(index, SIZE) == numbers(index)).all() for index in range(6))


def test_data_of_which_nothing_can_be_learned_are_refused(tmp_path: Path):
    for split, mask in {"train": np.zeros(SIZE, np.uint8), "test": np.zeros(SIZE, np.uint8)}.items():
        save(tmp_path / split / "images/a.jpg", image(0))
        save(tmp_path / split / "masks/a.png", mask)
    with pytest.raises(DataError, match="one class only, class 0"):
        partition(open_data(tmp_path, task="auto"), objective="segment")
    shutil.rmtree(tmp_path / "train/masks")
    save(tmp_path / "test/masks/a.png", numbers(0))
    with pytest.raises(DataError, match="no mask for an image to train on"):
        partition(open_data(tmp_path, task="auto"), objective="segment")


def test_a_resumed_run_notices_that_a_mask_has_changed(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png", count=4)
    data = open_data(tmp_path, task="auto")
    record = contents_record(data, ["all"], "sample", Reading())
    assert changed_images(data, record, Reading()) == []
    save(tmp_path / "masks/2.png", numbers(9))
    assert changed_images(open_data(tmp_path, task="auto"), record, Reading()) == ["images/2.jpg"]


def test_masks_of_images_outside_all_splits_are_an_error(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png")
    save(tmp_path / "val/images/9.jpg", image(9))
    with pytest.raises(DataError, match="has masks, and none of an image in a split") as error:
        open_data(tmp_path, task="auto")
    assert "in no split, skipped: 3 files: images/0.jpg" in str(error.value)


def test_shards_refuse_masks(tmp_path: Path):
    write_pairs(tmp_path / "data", "images/{}.jpg", "masks/{}.png")
    with pytest.raises(DataError, match="has masks, which shards do not hold"):
        write_shards(open_data(tmp_path / "data", task="auto"), tmp_path / "shards")
    assert not (tmp_path / "shards").exists()
