"""Zip files with masks give what their unpacked folders give, in every layout, and damaged ones are errors."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.masks.sample_masks import SIZE, coco_json, image, numbers, save, write_json, write_pairs, write_yolo
from tests.data.sources.test_coco import LAYOUTS as COCO_LAYOUTS
from tests.data.sources.test_mask_folders import LAYOUTS
from vitkit.data.check import check
from vitkit.data.contents import Reading, changed_images, contents_record
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.sources.folder_scan import scan_folder, scan_names
from vitkit.data.sources.open import open_data
from vitkit.errors import VitkitError


def zipped(folder: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """Write FOLDER.zip with the files of the folder, in an order that is not sorted."""
    path = folder.with_name(f"{folder.name}.zip")
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in sorted((one for one in folder.rglob("*") if one.is_file()), key=lambda one: one.name[::-1]):
            archive.write(file, file.relative_to(folder).as_posix())
    return path


def packed(path: Path, members: Mapping[str, bytes]) -> Path:
    """Write a zip file with these names as they are, backslashes too."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo("x")
            info.filename = name
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return path


def encoded(pixels: np.ndarray | Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(file, kind)
    return file.getvalue()


def masks_of(split: Split, prefix: str = "") -> list[list[list[int]] | str]:
    """Return the masks of a split, and the errors in place of those that cannot be read."""
    masks: list[list[list[int]] | str] = []
    for index in split.rows_with_labels().tolist():
        try:
            masks.append(split.read_mask(index, SIZE).tolist())
        except DataError as error:
            masks.append(str(error).replace(prefix, "", 1) if prefix else str(error))
    return masks


def assert_same(archive: Data, folder: Data, prefix: str) -> None:
    """Assert that data are equal but for the name of the zip file in front of the names of images and masks."""
    assert (archive.task, archive.kind, archive.classes) == (folder.task, folder.kind, folder.classes)
    assert (archive.palette, archive.notes) == (folder.palette, folder.notes)
    assert archive.splits.keys() == folder.splits.keys()
    for name, split in folder.splits.items():
        other = archive.splits[name]
        assert list(other.keys) == [prefix + key for key in split.keys]
        assert np.array_equal(other.labels, split.labels)  # type: ignore[arg-type]
        assert [other.read(index) for index in range(len(other))] == [split.read(index) for index in range(len(split))]
        assert masks_of(other, prefix) == masks_of(split)
        for index in split.rows_with_labels().tolist():
            assert other.mask_name(index) == prefix + split.mask_name(index)
            assert other.mask_content(index) == split.mask_content(index)


def write_coco(root: Path, layout: str, form: str) -> None:
    file, folder = COCO_LAYOUTS[layout]
    for split, seeds in {"train": range(2), "val": range(2, 4)}.items():
        for seed in seeds:
            save(root / folder.format(split) / f"{seed}.jpg", image(seed))
        write_json(root / file.format(split), coco_json(seeds, form))


def write_layout(root: Path, layout: str) -> None:
    for first, (images, masks, _) in enumerate(LAYOUTS[layout]):
        write_pairs(root, images, masks, first=3 * first)


def write_ultralytics(root: Path) -> None:
    for split, seeds in {"train": range(2), "val": range(2, 4)}.items():
        write_yolo(root, f"images/{split}/{{}}.jpg", f"labels/{split}/{{}}.txt", seeds)
    (root / "data.yaml").write_text("names: [cat, dog]\n")


def write_unnamed_yolo(root: Path) -> None:
    write_yolo(root, "train/images/{}.jpg", "train/labels/{}.txt", range(3))
    save(root / "train/images/more.jpg", image(8))


def write_cvat(root: Path) -> None:
    """Write what CVAT exports as "Segmentation mask 1.1": colours, a table of them, and lists of the splits."""
    colours = np.array([(0, 0, 0), (200, 0, 10), (10, 200, 255)], np.uint8)
    for seed in range(4):
        save(root / f"JPEGImages/{seed}.jpg", image(seed))
        save(root / f"SegmentationClass/{seed}.png", colours[numbers(seed)])
    (root / "labelmap.txt").write_text("# label:color_rgb:parts:actions\nbackground:0,0,0::\ncat:200,0,10::\n")
    with (root / "labelmap.txt").open("a") as file:
        file.write("dog:10,200,255::\n")
    for name, rows in {"train": "0\n1\n2\n", "val": "3\n"}.items():
        (root / "ImageSets/Segmentation").mkdir(parents=True, exist_ok=True)
        (root / f"ImageSets/Segmentation/{name}.txt").write_text(rows)


def write_odd_masks(root: Path) -> None:
    """Write masks that are too small, damaged, or missing, one without an image, and numbers that nothing names."""
    write_pairs(root, "images/{}.jpg", "masks/{}.png", count=5)
    save(root / "masks/0.png", numbers(0, (8, 9)))
    (root / "masks/1.png").write_bytes(b"no image")
    save(root / "masks/2.png", numbers(2) + 9)
    (root / "masks/3.png").unlink()
    save(root / "masks/other.png", numbers(7))
    (root / "masks/classes.txt").write_text("background\ncat\nvoid\n")


FOLDERS: dict[str, Callable[[Path], None]] = {
    **{layout: lambda root, layout=layout: write_layout(root, layout) for layout in LAYOUTS},  # type: ignore[misc]
    **{
        f"{layout}, {form}": lambda root, layout=layout, form=form: write_coco(root, layout, form)  # type: ignore[misc]
        for layout in COCO_LAYOUTS
        for form in ("polygon", "rle")
    },
    "YOLO of Ultralytics": write_ultralytics,
    "YOLO without names": write_unnamed_yolo,
    "CVAT": write_cvat,
    "odd masks": write_odd_masks,
}


@pytest.mark.parametrize("layout", FOLDERS)
def test_a_zip_file_gives_what_its_unpacked_folder_gives(layout: str, tmp_path: Path):
    FOLDERS[layout](tmp_path / "data")
    path = zipped(tmp_path / "data")
    folder = open_data(tmp_path / "data", task="auto")
    assert folder.task == "segment"
    assert_same(open_data(path, task="auto"), folder, "data.zip/")
    assert_same(open_data(path, task="segment"), folder, "data.zip/")
    assert open_data(path, task="classify").task == "classify"


_FOLDERS = st.sampled_from(
    ["", "images/", "masks/", "train/", "val/images/", "val/masks/", "labels/", "a/images/", "images/b/", "._a/"]
)
_NAMES = st.sampled_from(["0.jpg", "1.jpg", "0.png", "1.png", "0_mask.png", "0.txt", "Ä b.png"])
_TOP = st.sampled_from(["classes.txt", "train.txt", "coco.json", "annotations/a.json", "data.yaml", "list.md"])
_POLYGON = b"0 0.1 0.1 0.5 0.5 0.9 0.1\n"
_COCO = (
    b'{"images": [{"id": 1, "file_name": "0.jpg"}], "categories": [{"id": 3, "name": "cat"}], "annotations": '
    b'[{"id": 1, "image_id": 1, "category_id": 3, "segmentation": [[1, 1, 9, 1, 9, 9]]}]}'
)
_CONTENTS = {
    ".jpg": [encoded(image(seed), "JPEG") for seed in range(2)],
    ".png": [encoded(numbers(seed), "PNG") for seed in range(3)] + [encoded(image(2), "PNG")],
    ".txt": [_POLYGON, _POLYGON, b"background\ncat\ndog\n", b"0.jpg\n1.jpg\n", b""],
    ".json": [_COCO, _COCO[:-1], _COCO.replace(b"segm", b"bbox")],
    ".yaml": [b"names: [cat, dog]\n", b"names: [cat\n", b"\xff"],
    ".md": [b"# Data"],
}
_BASES = st.sampled_from(["masks/0.png", "masks/0.png", "labels/0.txt", "coco.json", "list.md"])


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.tuples(_FOLDERS, _NAMES).map("".join) | _TOP, st.integers(0, 59), min_size=1, max_size=6), _BASES
)
def test_any_files_are_the_same_data_or_error_in_a_zip_file(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, int], base: str
):
    root = tmp_path_factory.mktemp("any") / "data"
    for path, choice in {"images/0.jpg": 0, base: 0, **files}.items():
        contents = _CONTENTS[Path(path).suffix]
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(contents[choice % len(contents)])
    archive = zipped(root)
    with zipfile.ZipFile(archive) as content_of:
        assert scan_names(content_of.namelist()) == scan_folder(str(root))
    folder, other = opened(root), opened(archive)
    if isinstance(folder, Data) and isinstance(other, Data):
        assert_same(other, folder, "data.zip/")
    else:
        assert str(other).replace(str(archive), str(root)) == folder


def opened(path: Path) -> Data | str:
    """Return the data with masks, or the text of the error."""
    try:
        return open_data(path, task="segment")
    except VitkitError as error:
        return str(error)


ODD_NAMES = {
    "backslashes": "{}\\{}",
    "a leading dot": "./{}/{}",
    "a folder around everything": "export 2024/{}/{}",
    "both": ".\\export\\{}\\{}",
}


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_of_other_tools_and_files_of_systems_change_no_mask(name: str, tmp_path: Path):
    form = ODD_NAMES[name]
    members = {
        form.format("images", ""): b"",
        form.format("images", "0.jpg"): encoded(image(0), "JPEG"),
        form.format("masks", "0.png"): encoded(numbers(0), "PNG"),
        form.format("masks", "classes.txt"): b"background\ncat\ndog\n",
        form.format("masks", ".DS_Store"): b"-",
        form.format("images", "Thumbs.db"): b"-",
        "__MACOSX/masks/._0.png": b"-",
        "__MACOSX/._classes.txt": b"-",
    }
    data = open_data(packed(tmp_path / "a.zip", members), task="auto")
    assert (data.task, data.classes) == ("segment", ("background", "cat", "dog"))
    assert data.splits["all"].keys[0].endswith("images/0.jpg")
    assert masks_of(data.splits["all"]) == [numbers(0).tolist()]


def test_of_two_members_with_one_name_the_last_counts_as_when_they_are_unpacked(tmp_path: Path):
    write_pairs(tmp_path / "data", "images/{}.jpg", "masks/{}.png")
    path = zipped(tmp_path / "data")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("masks/1.png", encoded(numbers(5), "PNG"))
    data = open_data(path, task="auto")
    assert masks_of(data.splits["all"]) == [numbers(seed).tolist() for seed in (0, 5, 2)]


def test_a_damaged_mask_is_named_and_the_others_are_read(tmp_path: Path):
    write_ultralytics(tmp_path / "yolo")
    write_pairs(tmp_path / "pairs", "images/{}.jpg", "masks/{}.png")
    (tmp_path / "pairs/classes.txt").write_text("background\ncat\ndog\n")
    for folder, member, split, name in (
        ("pairs", "masks/0.png", "all", "pairs.zip/masks/0.png"),
        ("yolo", "labels/train/0.txt", "train", "yolo.zip/labels/train/0.txt"),
    ):
        path = zipped(tmp_path / folder, zipfile.ZIP_STORED)
        data = open_data(path, task="auto")
        with zipfile.ZipFile(path) as archive:
            start = archive.getinfo(member).header_offset + 30 + len(member)
        content = bytearray(path.read_bytes())
        content[start + 20] ^= 1
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"mask {name}: cannot be read: {folder}.zip is damaged at this file"):
            data.splits[split].read_mask(0, SIZE)
        assert (data.splits[split].read_mask(1, SIZE) == numbers(1)).all()
        report = check(open_data(path, task="auto"))
        assert report.masks is not None
        assert [key.endswith("/0.jpg") for key, _ in report.masks.bad] == [True]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return a zip file of each kind of masks."""
    root, names = tmp_path_factory.mktemp("archives"), ("folders", "COCO, rle", "CVAT", "YOLO of Ultralytics")
    for name in names:
        FOLDERS[name](root / name)
    return [zipped(root / name) for name in names]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_zip_file_is_data_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, archives: list[Path], data: st.DataObject
):
    content = bytearray(data.draw(st.sampled_from(archives)).read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    for place in data.draw(st.lists(st.integers(0, max(len(content) - 1, 0)), max_size=4)):
        if content:
            content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "a.zip"
    path.write_bytes(content)
    with contextlib.suppress(VitkitError):
        for split in open_data(path, task="auto").splits.values():
            for index in range(len(split)):
                with contextlib.suppress(DataError):
                    split.read(index)
                    split.read_mask(index, SIZE)
                with contextlib.suppress(DataError, OSError):
                    split.mask_content(index)


def test_files_that_are_encrypted_too_large_or_of_another_method_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_ultralytics(tmp_path / "data")
    path = zipped(tmp_path / "data")
    whole = path.read_bytes()
    entry = whole.rindex(b"PK\x01\x02", 0, whole.rindex(b"data.yaml"))
    for place, value, message in (
        (8, 1, "is encrypted with a password"),
        (10, zipfile.ZIP_LZMA, "uses an unsupported compression method"),
        (27, 0x7F, r"data.yaml cannot be read: .* bytes, more than the 1,048,576 that such a file can have"),
    ):
        content = bytearray(whole)
        content[entry + place] = value
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            open_data(path, task="auto")
    path.write_bytes(whole)
    monkeypatch.setattr("vitkit.data.masks.yolo_masks.MOST_BYTES", 20)
    split = open_data(path, task="auto").splits["train"]
    with pytest.raises(DataError, match=r"labels/train/0.txt: cannot be read: .* more than the 20"):
        split.read_mask(0, SIZE)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_masks_in_zip_files_are_read_in_another_process(start: str, archives: list[Path]):
    splits = [split for path in archives for split in open_data(path, task="auto").splits.values()]
    local = [masks_of(split) for split in splits]
    assert all(isinstance(mask, list) for masks in local for mask in masks)
    with multiprocessing.get_context(start).Pool(1) as pool:
        assert pool.map(masks_of, splits, chunksize=len(splits)) == local


def test_a_resumed_run_notices_that_a_mask_in_a_zip_file_has_changed(tmp_path: Path):
    write_pairs(tmp_path / "data", "images/{}.jpg", "masks/{}.png")
    data = open_data(zipped(tmp_path / "data"), task="auto")
    record = contents_record(data, ["all"], "sample", Reading())
    assert changed_images(data, record, Reading()) == []
    save(tmp_path / "data/masks/2.png", numbers(9))
    changed = open_data(zipped(tmp_path / "data"), task="auto")
    assert changed_images(changed, record, Reading()) == ["data.zip/images/2.jpg"]


def test_masks_behind_a_url_are_not_read_and_a_note_says_where_they_are(tmp_path: Path):
    store = pytest.importorskip("fsspec").filesystem("memory")
    write_pairs(tmp_path / "data", "images/{}.jpg", "masks/{}.png")
    store.put(str(zipped(tmp_path / "data")), "/masked/data.zip")
    data = open_data("memory://masked/data.zip", task="auto")
    assert data.task == "classify"
    assert "masks are read from folders, .zip files and manifests of this machine: download it" in data.notes[-1]
    with pytest.raises(DataError, match=r"data.zip has no masks for segmentation") as error:
        open_data("memory://masked/data.zip", task="segment")
    assert "download or unpack it: masks are read from" in str(error.value)


def test_class_folders_in_a_zip_file_stay_classification(tmp_path: Path):
    for seed, path in enumerate(["photos/cat/1.jpg", "photos/dog/1.jpg", "photos/dog/2.jpg"]):
        save(tmp_path / "data" / path, image(seed))
    path = zipped(tmp_path / "data")
    assert open_data(path, task="auto").classes == open_data(path).classes == ("cat", "dog")
    with pytest.raises(DataError, match=r"data.zip has no masks for segmentation") as error:
        open_data(path, task="segment")
    assert "3 .jpg files" in str(error.value)
