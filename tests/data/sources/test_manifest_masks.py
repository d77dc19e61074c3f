"""Manifests with a column of masks give what the folder of their files gives."""

from __future__ import annotations

import csv
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.masks.sample_masks import SIZE, image, numbers, save, write_pairs
from tests.data.sources.test_mask_folders import LAYOUTS, camvid
from vitkit.data.check import check
from vitkit.data.contents import Reading, changed_images, contents_record
from vitkit.data.partition import partition
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.open import open_data

Row = dict[str, Any]
CERTAIN, LABELS_TOO = ("mask", "mask_path", "segmentation", "Mask_File"), ("label", "annotation", "labels", "target")


def write_manifest(path: Path, rows: Sequence[Row], delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps({key: cell for key, cell in row.items() if cell != ""}) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    return path


def rows_of(data: Data, image: str = "image", mask: str = "mask") -> list[Row]:
    """Return the rows of a manifest of the same images."""
    return [
        {image: key, mask: split.mask_name(index) if split.labels[index] == 0 else ""}  # type: ignore[index]
        | ({} if name == "all" else {"split": name})
        for name, split in data.splits.items()
        for index, key in enumerate(split.keys)
    ]


def assert_same(manifest: Data, folder: Data) -> None:
    assert (manifest.task, manifest.classes, manifest.palette) == ("segment", folder.classes, folder.palette)
    assert list(manifest.splits) == list(folder.splits)
    for name, split in folder.splits.items():
        other = pickle.loads(pickle.dumps(manifest.splits[name]))  # as a data worker gets it
        assert list(other.keys) == list(split.keys)
        assert other.labels.tolist() == split.labels.tolist()  # type: ignore[union-attr]
        for index in split.rows_with_labels().tolist():
            assert other.read(index) == split.read(index)
            assert (other.read_mask(index, SIZE) == split.read_mask(index, SIZE)).all()
            assert other.mask_name(index) == split.mask_name(index)
            assert other.mask_content(index) == split.mask_content(index)


def error_of(path: Path, **options: Any) -> str:
    with pytest.raises(DataError) as error:
        open_data(path, **options)
    return str(error.value)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("file", ["list.csv", "list.jsonl"])
def test_a_manifest_gives_what_the_folder_of_its_files_gives(layout: str, file: str, tmp_path: Path):
    for first, (images, masks, _) in enumerate(LAYOUTS[layout]):
        write_pairs(tmp_path, images, masks, first=3 * first)
        if layout in ("folders", "splits above", "SegNet's"):  # the others show their masks by there being one for each
            save(tmp_path / images.format("more"), image(7))
    folder = open_data(tmp_path, task="segment")
    manifest = open_data(write_manifest(tmp_path / file, rows_of(folder)), task="auto")
    assert manifest.kind == "manifest"
    assert_same(manifest, folder)
    assert f"masks found for segmentation in the column mask, such as {rows_of(folder)[0]['mask']}" in manifest.notes[0]
    assert [note for note in folder.notes if "class" in note or "without a mask" in note] == [*manifest.notes[1:]]
    assert open_data(tmp_path / file).task == "classify"


@pytest.mark.parametrize("column", [*CERTAIN, *LABELS_TOO])
def test_a_manifest_of_pandas_is_read_whatever_its_column_of_masks_is_called(column: str, tmp_path: Path):
    pandas = pytest.importorskip("pandas")
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png")
    folder = open_data(tmp_path, task="segment")
    pandas.DataFrame(rows_of(folder, "file_name", column)).to_csv(tmp_path / "list.csv", index=False)
    for task in ("auto", "segment"):
        assert_same(open_data(tmp_path / "list.csv", task=task), folder)
    assert_same(open_data(tmp_path / "list.csv", task="auto", label=column), folder)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.permutations(range(4)).flatmap(lambda order: st.tuples(st.just(order), st.integers(1, 4))),
    masked=st.lists(st.booleans(), min_size=4, max_size=4).filter(any),
    splits=st.lists(st.sampled_from(["train", "Valid", "TEST"]), min_size=4, max_size=4),
    form=st.sampled_from(["{}", "./{}", "../data/{}", "ABSOLUTE"]),
    delimiter=st.sampled_from(",;\t"),
    column=st.sampled_from([*CERTAIN, *LABELS_TOO]),
    ending=st.sampled_from([".csv", ".tsv", ".jsonl"]),
)
def test_any_rows_have_their_masks_and_splits(
    tmp_path_factory: pytest.TempPathFactory,
    rows: tuple[list[int], int],
    masked: list[bool],
    splits: list[str],
    form: str,
    delimiter: str,
    column: str,
    ending: str,
):
    root = tmp_path_factory.mktemp("any") / "data"
    write_pairs(root, "images/{}.jpg", "masks/ä b{}.png", count=4)
    (root / "classes.txt").write_text("background\ncat\ndog\n")
    seeds = [seed for seed in rows[0] if masked[seed]][:1] + [seed for seed in rows[0] if not masked[seed]][: rows[1]]
    form = f"{root}/{{}}" if form == "ABSOLUTE" else form
    listed = [
        {
            "image": f"images/{seed}.jpg",
            "remark": "",
            column: form.format(f"masks/ä b{seed}.png") if masked[seed] else "",
            "split": splits[seed],
        }
        for seed in seeds
    ]
    data = open_data(write_manifest(root / f"list{ending}", listed, delimiter), task="auto")
    assert (data.task, data.classes) == ("segment", ("background", "cat", "dog"))
    found = {
        (key, {"val": "valid"}.get(name, name), split.labels[index])  # type: ignore[index]
        for name, split in data.splits.items()
        for index, key in enumerate(split.keys)
    }
    assert found == {(f"images/{seed}.jpg", splits[seed].lower(), 0 if masked[seed] else -1) for seed in seeds}
    for split in data.splits.values():
        for index in split.rows_with_labels().tolist():
            assert (split.read_mask(index, SIZE) == numbers(int(Path(split.keys[index]).stem))).all()


@pytest.mark.parametrize("file", ["classes.txt", "masks/classes.txt"])
def test_names_of_classes_are_read_from_a_file_beside_the_manifest_or_the_masks(file: str, tmp_path: Path):
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png")
    (tmp_path / file).write_text("void\ncat\ndog\n")
    folder = open_data(tmp_path, task="segment")
    data = open_data(write_manifest(tmp_path / "list.csv", rows_of(folder)), task="auto")
    assert_same(data, folder)
    assert data.classes == ("cat", "dog")
    assert data.notes[1:] == ("pixels of these classes are ignored: void (0)", f"names of classes from {file}")


def test_known_datasets_are_recognised(tmp_path: Path):
    folder = camvid(tmp_path / "camvid")
    assert_same(open_data(write_manifest(tmp_path / "camvid/list.csv", rows_of(folder)), task="auto"), folder)
    for seed in range(3):
        save(tmp_path / f"pets/images/{seed}.jpg", image(seed))
        save(tmp_path / f"pets/annotations/trimaps/{seed}.png", numbers(seed) + 1)
    (tmp_path / "pets/annotations/trainval.txt").write_text("0 1 1 1\n1 1 1 1\n2 1 1 1\n")
    folder = open_data(tmp_path / "pets", task="auto")
    assert folder.classes == ("animal", "background")
    assert_same(open_data(write_manifest(tmp_path / "pets/list.csv", rows_of(folder)), task="auto"), folder)


def test_missing_masks_are_an_error_with_their_rows(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png", count=4)
    save(tmp_path / "images/4.jpg", image(4))
    rows = [{"image": f"images/{seed}.jpg", "mask": f"masks/{seed}.png"} for seed in range(4)]
    rows.append({"image": "images/4.jpg", "mask": ""})
    path = write_manifest(tmp_path / "list.csv", rows)
    (tmp_path / "masks/1.png").unlink()
    (tmp_path / "masks/3.png").unlink()
    message = error_of(path, task="auto")
    assert "list.csv: 2 of 4 masks are not where the manifest says." in message
    assert "line 3: masks/1.png" in message
    assert "line 5: masks/3.png" in message
    (tmp_path / "images/0.jpg").unlink()
    assert "1 of 5 images is not where the manifest says" in error_of(path, task="auto")


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        ("image,mask,label\nimages/0.jpg,yes,cat\nimages/1.jpg,no,dog\n", ("cat", "dog")),
        ("image,mask,label\nimages/0.jpg,1.png,cat\nimages/1.jpg,none,dog\n", ("cat", "dog")),
        ("image,mask,label\nimages/0.jpg,,cat\nimages/1.jpg,,dog\n", ("cat", "dog")),
        ("image,target\nimages/0.jpg,images/1.jpg\nimages/1.jpg,images/0.jpg\n", ("images/0.jpg", "images/1.jpg")),
        ("image,label\nimages/0.jpg,3\nimages/1.jpg,4\n", ("3", "4")),
        ("image\nimages/0.jpg\nimages/1.jpg\n", ()),
    ],
)
def test_columns_of_other_things_stay_classification(text: str, classes: tuple[str, ...], tmp_path: Path):
    for seed in range(2):
        save(tmp_path / f"images/{seed}.jpg", image(seed))
    (tmp_path / "list.csv").write_text(text)
    as_asked, found = open_data(tmp_path / "list.csv", task="classify"), open_data(tmp_path / "list.csv", task="auto")
    assert (found.task, found.classes, found.notes) == ("classify", classes, as_asked.notes)
    message = error_of(tmp_path / "list.csv", task="segment")
    assert "list.csv has no masks for segmentation" in message
    assert "a column of names of image files, such as mask" in message


def test_the_column_that_a_user_names_is_the_only_one_that_may_have_masks(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png")
    rows = [{"image": f"images/{seed}.jpg", "mask": f"masks/{seed}.png", "label": f"c{seed}"} for seed in range(3)]
    path = write_manifest(tmp_path / "list.csv", rows)
    assert open_data(path, task="auto").task == "segment"
    assert open_data(path, task="auto", label="label").classes == ("c0", "c1", "c2")
    assert open_data(path, task="auto", label="mask").task == "segment"
    assert "has no column 'masc'" in error_of(path, task="auto", label="masc")


def test_masks_behind_a_url_are_not_read(tmp_path: Path):
    save(tmp_path / "0.jpg", image(0))
    path = write_manifest(tmp_path / "list.csv", [{"image": "0.jpg", "mask": "https://host/0.png?key=secret"}])
    data = open_data(path, task="auto")
    note = "the column mask names masks behind a URL, which are not read: download them"
    assert (data.task, data.notes[0]) == ("classify", note)
    message = error_of(path, task="segment")
    assert note in message
    assert "secret" not in message
    store = pytest.importorskip("fsspec").filesystem("memory")
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png")
    rows = [{"image": f"images/{seed}.jpg", "mask": f"masks/{seed}.png"} for seed in range(3)]
    store.put(str(write_manifest(tmp_path / "remote.csv", rows)), "/listed/remote.csv")
    for seed in range(3):
        store.put(str(tmp_path / f"images/{seed}.jpg"), f"/listed/images/{seed}.jpg")
    assert note in open_data("memory://listed/remote.csv", task="auto").notes


def test_images_of_a_group_stay_together_and_names_without_an_ending_are_found(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png", count=8)
    rows = [{"image_id": f"{seed}", "mask": f"masks/{seed}.png", "group": f"g{seed // 2}"} for seed in range(8)]
    data = open_data(write_manifest(tmp_path / "list.csv", rows), task="auto")
    assert data.splits["all"].keys[5] == "images/5.jpg"
    assert any("4 groups of 2 images by the column group" in note for note in data.notes)
    divided = partition(data, objective="segment")
    assert divided.test is not None
    groups = [{int(Path(key).stem) // 2 for key in split.keys} for split in (divided.train, divided.test)]
    assert not groups[0] & groups[1]


def test_a_check_names_bad_masks_and_a_resumed_run_notices_changed_ones(tmp_path: Path):
    write_pairs(tmp_path, "images/{}.jpg", "masks/{}.png", count=4)
    (tmp_path / "classes.txt").write_text("background\ncat\ndog\n")
    path = write_manifest(tmp_path / "list.csv", rows_of(open_data(tmp_path, task="segment")))
    data = open_data(path, task="auto")
    record = contents_record(data, ["all"], "sample", Reading())
    assert changed_images(data, record, Reading()) == []
    save(tmp_path / "masks/2.png", np.full(SIZE, 77, np.uint8))
    changed = open_data(path, task="auto")
    assert changed_images(changed, record, Reading()) == ["images/2.jpg"]
    report = check(changed)
    assert report.masks is not None
    assert [key for key, _ in report.masks.bad] == ["images/2.jpg"]
    assert "mask masks/2.png: 192 pixels have the number 77, of no class in classes.txt" in report.masks.bad[0][1]
