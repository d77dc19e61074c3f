"""A task of VTAB-1k as it is passed around: images, and lists of their paths and classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitkit.data.decode import decode
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.open import open_data

LISTS = {"train800": 24, "val200": 6, "train800val200": 30, "test": 12}


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Write a task in the layout of the archive: images/SPLIT/NUMBER.jpg, without folders of classes."""
    for name in ("train800", "val200", "test"):
        (tmp_path / "images" / name).mkdir(parents=True)
    for name, count in LISTS.items():
        lines = []
        for number in range(count):
            folder = name if name != "train800val200" else "train800" if number < 24 else "val200"
            path = f"images/{folder}/{number if folder != 'val200' or name == 'val200' else number - 24:06}.png"
            if not (tmp_path / path).exists():
                Image.new("RGB", (8, 8), (20 * (number % 11), 0, 0)).save(tmp_path / path)
            lines.append(f"{path} {number % 11}\n")
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    return tmp_path


def test_the_lists_are_the_splits_and_their_numbers_the_classes(task: Path):
    data = open_data(task)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 24, "val": 6, "test": 12}
    assert data.classes == tuple(map(str, range(11)))  # in the order of numbers, not of letters
    for split in data.splits.values():
        for index in range(len(split)):
            assert decode(split.read(index))[0, 0, 0] == 20 * int(data.classes[split.labels[index]])
    assert np.bincount(data.splits["train"].labels).sum() == 24


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("images/test/000000.png", "is no image and class"),
        ("images/test/000000.png cat", "is no image and class"),
        ("../secret.png 3", 'a path with ".." in it'),
        ("/etc/secret.png 3", "an absolute path"),
    ],
)
def test_a_line_that_is_no_image_of_the_folder_is_an_error(line: str, message: str, task: Path):
    with (task / "test.txt").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(DataError) as raised:
        open_data(task)
    assert message in str(raised.value)


def test_other_folders_with_lists_stay_class_folders(task: Path):
    (task / "val200.txt").unlink()
    assert open_data(task).kind != "VTAB-1k lists"
