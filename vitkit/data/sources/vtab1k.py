"""A task of VTAB-1k as it is passed around: a folder of images with train800.txt, val200.txt and test.txt.

Each line of a list is the path of an image, relative to the folder, and the number of its class.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from vitkit.data.sources.class_labels import RawSplit, build_data
from vitkit.data.sources.dataset import Data, DataError, PackedStrings
from vitkit.data.sources.image_files import FileImages
from vitkit.data.sources.member_paths import check_member_path
from vitkit.stored_json import read_bytes

LISTS = {"train": "train800.txt", "val": "val200.txt", "test": "test.txt"}


def is_vtab1k(folder: Path) -> bool:
    return all((folder / name).is_file() for name in LISTS.values())


def open_vtab1k(name: str, folder: Path) -> Data:
    """Open such a folder; the classes are called by their numbers."""
    splits = {}
    for split, file in LISTS.items():
        pairs = list(_pairs(folder / file))
        paths = PackedStrings(path for path, _ in pairs)
        splits[split] = RawSplit(paths, FileImages(os.fspath(folder), paths), [label for _, label in pairs])
    return build_data(name, "VTAB-1k lists", splits)


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    try:
        text = read_bytes(path, error=DataError).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text: {error.reason}.") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        image, _, label = line.strip().rpartition(" ")
        if not image or not label.isdecimal():
            raise DataError(f"{path}, line {number}: {line[:60]!r} is no image and class.", expected="images/a.jpg 3")
        check_member_path(str(path), image.strip())
        yield image.strip(), str(int(label))
