from __future__ import annotations

import os
import pickle
import random
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.sources.sample_sources import png, sample_files, write_files
from vitkit.data.sources import folders
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.image_paths import iterate_image_names
from vitkit.data.sources.open import open_data


def labels_by_key(data: Data, split: str = "all") -> dict[str, str | None]:
    """Return key → class."""
    part = data.splits[split]
    return {
        key: data.classes[label] if label >= 0 else None
        for key, label in zip(part.keys, part.labels.tolist(), strict=True)
    }


def noted(data: Data, *texts: str) -> bool:
    return any(all(text in note for text in texts) for note in data.notes)


def test_folders_are_classes_including_their_subfolders(tmp_path: Path):
    write_files(tmp_path, {"dog/1.png": png(1), "cat/old/film 3/2.PNG": png(2), "cat/a.jpeg": png(3)})
    data = open_data(tmp_path)
    assert (data.kind, data.classes, data.multilabel) == ("class folders", ("cat", "dog"), False)
    assert labels_by_key(data) == {"cat/a.jpeg": "cat", "cat/old/film 3/2.PNG": "cat", "dog/1.png": "dog"}
    assert [data.splits["all"].read(index) for index in range(3)] == [png(3), png(2), png(1)]


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("train", "train"),
        ("Training", "train"),
        ("TRAINVAL", "trainval"),
        ("val", "val"),
        ("valid", "val"),
        ("Validation", "val"),
        ("dev", "val"),
        ("test", "test"),
        ("TESTING", "test"),
    ],
)
def test_splits_are_recognised_by_their_usual_names(written: str, canonical: str, tmp_path: Path):
    write_files(tmp_path, {f"{written}/cat/1.png": png(1), f"{written}/dog/2.png": png(2)})
    assert {name: len(split) for name, split in open_data(tmp_path).splits.items()} == {canonical: 2}


def test_all_splits_share_one_list_of_classes_and_missing_ones_are_noted(tmp_path: Path):
    write_files(
        tmp_path, {"train/b/1.png": png(1), "train/c/1.png": png(2), "val/a/1.png": png(3), "val/c/1.png": png(4)}
    )
    data = open_data(tmp_path)
    assert data.classes == ("a", "b", "c")
    assert list(data.splits) == ["train", "val"]
    assert labels_by_key(data, "val") == {"val/a/1.png": "a", "val/c/1.png": "c"}
    assert data.splits["val"].labels.tolist() == [0, 2]
    assert noted(data, "val has no image of 1 class: b")
    assert noted(data, "train has no image of a, which cannot be learned")


def test_numeric_class_names_are_sorted_by_value(tmp_path: Path):
    write_files(tmp_path, {f"{number}/1.png": png(1) for number in (10, 2, 1)})
    assert open_data(tmp_path).classes == ("1", "2", "10")


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_a_flat_folder_is_unlabelled(prefix: str, tmp_path: Path):
    write_files(tmp_path, {f"{prefix}{number}.png": png(number) for number in range(3)})
    data = open_data(tmp_path)
    assert (data.kind, data.classes) == ("flat folder", ())
    assert data.splits[prefix.rstrip("/") or "all"].labels.tolist() == [-1, -1, -1]


def test_a_test_split_without_class_folders_is_unlabelled(tmp_path: Path):
    write_files(tmp_path, {"train/a/1.png": png(1), "train/b/1.png": png(2), "test/1.png": png(3)})
    data = open_data(tmp_path)
    assert data.classes == ("a", "b")
    assert labels_by_key(data, "test") == {"test/1.png": None}
    assert noted(data, "test has no class folders", "1 image is unlabelled")


def test_a_folder_called_train_among_other_classes_is_a_class(tmp_path: Path):
    write_files(tmp_path, {f"{name}/1.png": png(1) for name in ("train", "bus", "car")})
    data = open_data(tmp_path)
    assert data.classes == ("bus", "car", "train")
    assert noted(data, "train is read as a class")


def test_images_next_to_splits_and_classes_are_skipped_and_noted(tmp_path: Path):
    write_files(
        tmp_path,
        {
            "train/a/1.png": png(1),
            "train/b/1.png": png(1),
            "train/loose.png": png(1),
            "test/a/1.png": png(1),
            "extra/1.png": png(1),
            "sheet.png": png(1),
        },
    )
    data = open_data(tmp_path)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 2, "test": 1}
    assert noted(data, "next to the class folders in train/, skipped: 1 image")
    assert noted(data, "folders next to the splits, skipped: extra")
    assert noted(data, "next to the split folders", "sheet.png")


def test_mostly_loose_images_are_a_flat_folder_and_none_is_lost(tmp_path: Path):
    write_files(tmp_path, {**{f"{number}.png": png(number) for number in range(5)}, "thumbs/1.png": png(9)})
    data = open_data(tmp_path)
    assert (data.kind, len(data.splits["all"]), data.classes) == ("flat folder", 6, ())
    assert noted(data, "5 images outside folders and 1 inside thumbs: read as unlabelled")


def test_a_single_folder_around_splits_is_ignored(tmp_path: Path):
    write_files(tmp_path / "photos", sample_files())
    inside, outside = open_data(tmp_path / "photos"), open_data(tmp_path)
    assert outside.classes == inside.classes
    assert outside.splits["train"].labels.tolist() == inside.splits["train"].labels.tolist()
    assert noted(outside, "splits or classes found in the folder photos")


def test_a_folder_of_folders_is_one_class(tmp_path: Path):
    write_files(tmp_path / "cat", {f"{year}/{number}.png": png(number) for year in (2020, 2021) for number in range(3)})
    data = open_data(tmp_path)
    assert data.classes == ("cat",)
    assert noted(data, "one class only: cat")


def test_two_spellings_of_a_split_are_an_error(tmp_path: Path):
    write_files(tmp_path, {f"{name}/a/1.png": png(1) for name in ("train", "val", "dev")})
    with pytest.raises(DataError, match="more than one split that could be val: dev, val"):
        open_data(tmp_path)


def test_splits_inside_classes_are_noted(tmp_path: Path):
    write_files(tmp_path, {f"{name}/{split}/1.png": png(1) for name in "ab" for split in ("train", "test")})
    assert noted(open_data(tmp_path), "CLASS/SPLIT is not")


def test_system_files_are_skipped_and_other_files_are_counted(tmp_path: Path):
    write_files(
        tmp_path,
        {
            "a/1.png": png(1),
            "b/1.png": png(2),
            "a/._1.png": b"",
            "a/.hidden.jpg": b"",
            "a/Thumbs.db": b"",
            "__MACOSX/a/1.png": b"",
            ".cache/1.png": b"",
            "a/notes.txt": b"",
            "b/film.mp4": b"",
            "b/x": b"",
        },
    )
    data = open_data(tmp_path)
    assert labels_by_key(data) == {"a/1.png": "a", "b/1.png": "b"}
    assert noted(data, "not images, skipped", "1 .mp4 file, 1 .txt file, 1 extensionless file in 2 folders")


def test_an_empty_folder_is_noted_and_is_not_a_class(tmp_path: Path):
    write_files(tmp_path, {"a/1.png": png(1), "b/1.png": png(2), "c/readme.txt": b""})
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    data = open_data(tmp_path)
    assert data.classes == ("a", "b")
    assert noted(data, "folders without images", "c, empty")


def test_a_single_class_is_allowed_and_noted(tmp_path: Path):
    write_files(tmp_path, {"cat/1.png": png(1), "cat/2.png": png(2), "cat/3.png": png(3)})
    data = open_data(tmp_path)
    assert (data.classes, len(data.splits["all"])) == (("cat",), 3)
    assert noted(data, "one class only: cat")


def test_the_order_of_creation_does_not_matter(tmp_path: Path):
    shuffled = list(sample_files().items())
    random.Random(1).shuffle(shuffled)
    first, second = (
        open_data(write_files(tmp_path / "1", sample_files())),
        open_data(write_files(tmp_path / "2", dict(shuffled))),
    )
    assert first.classes == second.classes
    for split in first.splits:
        assert labels_by_key(first, split) == labels_by_key(second, split)
        assert list(first.splits[split].keys) == list(second.splits[split].keys)


def test_links_are_followed_but_not_in_circles(tmp_path: Path):
    outside = write_files(tmp_path / "outside", {"1.png": png(1), "2.png": png(2)})
    root = write_files(tmp_path / "root", {"train/a/1.png": png(3), "train/b/1.png": png(4)})
    (root / "train" / "c").symlink_to(outside)
    (root / "val").symlink_to(root / "train")  # the same folder under another name is read twice
    (root / "train" / "a" / "up").symlink_to(root)  # circles, long and short
    (root / "train" / "b" / "self").symlink_to("self")
    (root / "train" / "a" / "gone").symlink_to("nowhere")
    (root / "train" / "b" / "other").symlink_to(root / "train" / "a")
    data = open_data(root)
    assert data.classes == ("a", "b", "c")
    for split in ("train", "val"):
        part = data.splits[split]
        assert {key: data.classes[label] for key, label in zip(part.keys, part.labels, strict=True)} == {
            f"{split}/a/1.png": "a",
            f"{split}/b/1.png": "b",
            f"{split}/b/other/1.png": "b",
            f"{split}/c/1.png": "c",
            f"{split}/c/2.png": "c",
        }
    assert noted(data, "circular links", "train/a/up")
    assert noted(data, "circular links", "train/b/self")
    assert noted(data, "broken links", "train/a/gone")


def test_scanning_folders_that_all_link_to_each_other_ends(tmp_path: Path):
    names = [f"{number:02d}" for number in range(12)]
    write_files(tmp_path, {f"{name}/1.png": png(1) for name in names})
    for name in names:
        for other in names:
            (tmp_path / name / f"to{other}").symlink_to(tmp_path / other)
    assert len(open_data(tmp_path).classes) == 12


def test_a_pipe_called_jpg_is_not_opened(tmp_path: Path):
    write_files(tmp_path, {"a/1.png": png(1)})
    os.mkfifo(tmp_path / "a" / "2.jpg")
    data = open_data(tmp_path)
    assert len(data.splits["all"]) == 1
    assert noted(data, "not regular files", "a/2.jpg")


def test_unreadable_files_are_noted():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        root = write_files(Path(folder), {"a/1.png": png(1), "a/2.png": png(2), "b/1.png": png(3)})
        root.chmod(0o755)
        (root / "a" / "2.png").chmod(0)
        (root / "b").chmod(0)
        data = as_nobody(lambda: open_data(root))
        (root / "b").chmod(0o700)
    assert labels_by_key(data) == {"a/1.png": "a"}
    assert noted(data, "unreadable", "a/2.png, b")


def as_nobody(work: Callable[[], Data]) -> Data:
    """Run the work as another user, since root can read everything."""
    if os.geteuid() != 0:
        return work()
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            os.write(send, pickle.dumps(work()))
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(content)


def test_a_deleted_file_is_named_when_it_is_read(tmp_path: Path):
    write_files(tmp_path, {"a/1.png": png(1), "b/1.png": png(2)})
    part = open_data(tmp_path).splits["all"]
    (tmp_path / "b" / "1.png").unlink()
    with pytest.raises(DataError, match=r"b/1.png cannot be read: No such file"):
        part.read(1)


@pytest.mark.parametrize(
    ("splits", "missing_from"),
    [
        (("trainval", "val"), "trainval"),
        (("train", "trainval"), "train"),
        (("val", "test"), None),
    ],
)
def test_only_classes_missing_from_the_training_split_cannot_be_learned(
    splits: tuple[str, str], missing_from: str | None, tmp_path: Path
):
    first, second = splits
    data = open_data(
        write_files(
            tmp_path,
            {
                f"{first}/a/1.png": png(1),
                f"{first}/b/1.png": png(2),
                f"{second}/b/1.png": png(3),
                f"{second}/c/1.png": png(4),
            },
        )
    )
    notes = [note for note in data.notes if "cannot be learned" in note]
    assert notes == ([f"{missing_from} has no image of c, which cannot be learned"] if missing_from else [])


def test_unusual_file_and_class_names_work(tmp_path: Path):
    composed, decomposed = unicodedata.normalize("NFC", "café"), unicodedata.normalize("NFD", "café")
    odd = b"caf\xe9.png".decode("utf-8", "surrogateescape")  # Latin-1, no text in UTF-8
    write_files(
        tmp_path,
        {
            f"{composed}/1.png": png(1),
            f"{decomposed}/1.png": png(2),
            f"猫 🐈/{'n' * 250}.png": png(3),
            "/".join(["deep"] * 60) + "/1.png": png(4),
            f"plain/{odd}": png(5),
            "a\nb/1.png": png(6),
        },
    )
    data = open_data(tmp_path)
    assert set(data.classes) == {composed, "猫 🐈", "deep", "plain", "a\nb"}
    part = data.splits["all"]
    assert {part.read(index) for index in range(len(part))} == {png(seed) for seed in range(1, 7)}
    assert "".join(part.keys).encode("utf-8")  # every key can be printed
    assert not noted(data, "look alike")


@pytest.mark.parametrize(
    ("names", "spellings"),
    [
        (("고양이", "고양이 "), "'고양이', '고양이 '"),
        (("Straße", "strasse", "STRASSE"), "'STRASSE', 'Straße', 'strasse'"),
        (("하나", "\N{NO-BREAK SPACE}하나"), r"'\xa0하나', '하나'"),
        (("\N{MICRO SIGN}m", "\N{GREEK SMALL LETTER MU}m"), "'µm' (U+00B5), 'μm'"),
        (("\N{HANGUL LETTER KIYEOK}", "\N{HANGUL CHOSEONG KIYEOK}"), "'ᄀ', 'ㄱ' (U+3131)"),
        (("Ｍａｎｓ", "mans"), "'mans', 'Ｍａｎｓ' (U+FF2D, U+FF41, U+FF4E and 1 more)"),
    ],
)
def test_class_names_that_look_alike_stay_separate_and_are_noted(
    names: tuple[str, ...], spellings: str, tmp_path: Path
):
    data = open_data(write_files(tmp_path, {f"{name}/1.png": png(seed) for seed, name in enumerate(names)}))
    assert set(data.classes) == set(names)
    assert data.notes == (f"classes that look alike but are spelled differently stay separate: {spellings}",)


def test_select_takes_indices_masks_and_nothing(tmp_path: Path):
    part = open_data(write_files(tmp_path, sample_files())).splits["train"]
    order = [5, 0, 5]
    chosen = part.select(order)
    assert list(chosen.keys) == [part.keys[index] for index in order]
    assert [chosen.read(index) for index in range(3)] == [part.read(index) for index in order]
    assert chosen.labels.tolist() == part.labels[order].tolist()
    masked = chosen.select(np.array([False, True, False]))
    assert (list(masked.keys), masked.read(0)) == ([part.keys[0]], part.read(0))
    assert len(part.select([])) == 0
    assert list(part.keys[1:3]) == [part.keys[1], part.keys[2]]


@given(
    paths=st.lists(
        st.lists(st.sampled_from(["train", "test", "val", "cat", "dog", "1.png", "2.png"]), min_size=1, max_size=4),
        min_size=1,
        max_size=12,
    )
)
def test_every_image_is_used_at_most_once_and_with_a_label_from_its_path(tmp_path_factory, paths: list[list[str]]):
    root = tmp_path_factory.mktemp("any")
    write_files(root, {f"{'/'.join(part.replace('.png', '') for part in parts)}.png": png(1) for parts in paths})
    try:
        data = open_data(root)
    except DataError as error:
        if "can be read in two ways" in str(error):
            return
        raise
    keys = [key for part in data.splits.values() for key in part.keys]
    assert len(keys) == len(set(keys))
    for split, part in data.splits.items():
        for key, label in zip(part.keys, part.labels, strict=True):
            assert split == "all" or split in key.split("/")[:-1]
            assert label == -1 or data.classes[label] in key.split("/")[:-1]


def test_a_folder_without_images_is_an_error_with_what_was_expected_and_found(tmp_path: Path):
    write_files(tmp_path, {"a/1.mp4": b"", "a/2.mp4": b"", "b/list.csv": b""})
    with pytest.raises(DataError) as error:
        open_data(tmp_path)
    message = str(error.value)
    assert "has no usable images" in message
    assert f"expected  {tmp_path}/CLASS/*.jpg (also train/, val/, test/ above it)" in message
    assert "found     2 .mp4 files, 1 .csv file in 2 folders" in message
    assert f"try       give the manifest itself: {tmp_path}/b/list.csv" in message


def test_an_empty_folder_and_a_missing_one_have_different_errors(tmp_path: Path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(DataError, match="no files"):
        open_data(tmp_path / "photos")
    with pytest.raises(DataError, match="does not exist; did you mean photos"):
        open_data(tmp_path / "photo")


def test_heic_without_a_decoder_is_one_error_that_says_what_to_install(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(folders.importlib.util, "find_spec", lambda name: None)
    write_files(tmp_path, {f"{name}/{number}.heic": b"" for name in "abc" for number in range(4)})
    with pytest.raises(DataError) as error:
        open_data(tmp_path)
    assert "12 .heic files in 3 folders" in str(error.value)
    assert 'pip install "vitkit[formats]"' in str(error.value)


def test_a_split_with_class_folders_next_to_another_folder_is_a_split(tmp_path: Path):
    """SVHN's `extra`, STL's `unlabeled`: the classes must not become one class called train."""
    for path in ("train/cat/1.png", "train/dog/2.png", "extra/3.png"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"image")
    data = open_data(tmp_path)
    assert data.classes == ("cat", "dog")
    assert list(data.splits) == ["train"]
    assert any("extra" in note for note in data.notes)
    (tmp_path / "extra" / "deep").mkdir()
    (tmp_path / "extra" / "deep" / "4.png").write_bytes(b"image")
    with pytest.raises(DataError, match="can be read in two ways"):
        open_data(tmp_path)


def test_images_are_listed_in_order_while_folders_are_scanned(tmp_path: Path):
    names = ["a/1.jpg", "a b/1.jpg", "a.jpg", "a-.jpg", "a/b/2.jpg", "a/b.jpg", "é/1.jpg", "b/c/d/e/1.jpg", "b/c/d.jpg"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "a" / "aa.jpg").symlink_to("nowhere")
    counted: list[int] = []
    listed = iterate_image_names([tmp_path], counted.append)
    first = next(listed)
    assert sum(counted) == 6 + 4  # the entries of the folder and of a/, not yet of those below and after it
    expected = sorted([*names, "a/aa.jpg"], key=lambda name: name.split("/"))  # by parts
    assert [first, *listed] == [str(tmp_path / name) for name in expected]
