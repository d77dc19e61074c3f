"""Read a JSON file of COCO: its images, its categories, and the annotations of each image."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NotRequired, TypedDict

from vitkit.data.masks.coco_masks import KEPT
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.file_tree import FileTree
from vitkit.data.sources.mask_layout import split_of_folder
from vitkit.data.sources.splits import ALL, split_in_file_name
from vitkit.stored_json import conform
from vitkit.text import counted, few

MOST_BYTES = 1 << 30  # instances_train2017.json has 448 MB
START_BYTES = 4096  # that show whether a file is COCO's
_START = re.compile(rb'\s*\{\s*"(info|images|annotations|categories|licenses|type)"')


LISTS = ("images", "annotations", "categories")  # the keys of a file
_EXPECTED_IMAGE = '{"id": 1, "file_name": "a.jpg"} in "images"'
_EXPECTED_CATEGORY = '{"id": 1, "name": "cat"} in "categories"'
_EXPECTED_ANNOTATION = '{"image_id": 1, "category_id": 1, "segmentation": […]} in "annotations"'


class CocoImage(TypedDict):
    id: int | str
    file_name: str
    height: NotRequired[int]
    width: NotRequired[int]


class CocoCategory(TypedDict):
    id: int
    name: str
    supercategory: NotRequired[str | None]


class _Lists(TypedDict):
    images: list[CocoImage]
    categories: list[CocoCategory]


@dataclass
class CocoFile:
    """The content of one JSON file."""

    path: str  # in the tree of files
    split: str
    images: list[CocoImage]
    categories: list[CocoCategory]
    annotations: dict[int | str, list[dict[str, Any]]]  # image id → its annotations, in the order of the file
    notes: list[str] = field(default_factory=list)

    @property
    def has_areas(self) -> bool:
        return any(one.get("segmentation") for some in self.annotations.values() for one in some)

    def used_categories(self) -> set[Any]:
        return {one.get("category_id") for some in self.annotations.values() for one in some}


def is_coco(tree: FileTree, path: str) -> bool:
    """Return whether a JSON file begins as COCO's do; it is not read to its end."""
    return _START.match(tree.read_start(path, START_BYTES)) is not None


def has_lists(tree: FileTree, path: str) -> bool:
    """Return whether the text of a file names all lists of COCO; it is not parsed."""
    try:
        content = tree.read(path, MOST_BYTES)
    except DataError:
        return False
    return all(f'"{key}"'.encode() in content for key in LISTS)


def read_coco(tree: FileTree, path: str) -> CocoFile:
    """Read a file by its path in the tree; annotations are checked when the mask of their image is read."""
    try:
        content = json.loads(tree.read(path, MOST_BYTES))
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is damaged, it is not JSON: {error}.") from error
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise DataError(
                f'{path} has no list "{key}".',
                expected='COCO\'s {"images": […], "annotations": […], "categories": […]}',
            )
    invalid = partial(DataError, expected=f"{_EXPECTED_IMAGE} and {_EXPECTED_CATEGORY}")
    lists: _Lists = conform({key: content[key] for key in ("images", "categories")}, _Lists, path, error=invalid)
    images, by_image = lists["images"], {image["id"]: list[dict[str, Any]]() for image in lists["images"]}
    if len(by_image) < len(images):
        raise DataError(f"{path} gives the same id to two images.", try_="an id for each image")
    file = CocoFile(path, _split(path), images, lists["categories"], by_image)
    incomplete, stray = [], []
    for position, annotation in enumerate(content["annotations"]):
        image = annotation.get("image_id") if isinstance(annotation, dict) else None
        if not isinstance(image, int | str):
            incomplete.append(f"annotations[{position}]")
        elif image in file.annotations:
            file.annotations[image].append({key: annotation[key] for key in KEPT if key in annotation})
        else:
            stray.append(f"annotations[{position}]")
    if incomplete:  # left out, its object would become background
        raise DataError(
            f"{path} has {counted(len(incomplete), 'annotation')} without an image_id: {few(incomplete)}.",
            expected=_EXPECTED_ANNOTATION,
        )
    if stray:
        file.notes.append(
            f"{path}: {counted(len(stray), 'annotation')} without an image of the file, skipped: {few(stray)}"
        )
    return file


def _split(path: str) -> str:
    folder, name = os.path.split(path)
    return split_in_file_name(os.path.splitext(name)[0]) or split_of_folder(os.path.basename(folder)) or ALL
