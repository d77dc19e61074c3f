"""COCO's JSON: annotations/instances_train2017.json and train2017/, or train/_annotations.coco.json as of Roboflow."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from vitkit.data.masks.class_table import ClassTable, NamedClass, build_table
from vitkit.data.masks.coco_masks import CocoMasks
from vitkit.data.masks.dense_extra import check_dense
from vitkit.data.sources.coco_file import CocoCategory, CocoFile, CocoImage, has_lists, is_coco, read_coco
from vitkit.data.sources.dataset import Data, DataError, PackedStrings
from vitkit.data.sources.file_tree import FileTree
from vitkit.data.sources.segmentation import BACKGROUND, RawMasks, build_segmentation, with_background
from vitkit.text import counted, few, printable

_OTHER_TASKS = re.compile(r"captions|keypoints|panoptic|image_info")
_USUAL_NAMES = re.compile(r"(?i)coco|instances|annotations")


def find_coco(tree: FileTree) -> list[str]:
    """Return the JSON files of a folder or archive that have annotations of areas as COCO has them.

    Under another name than the usual ones, a file has to be complete: other tools' files begin like this, too.
    """
    candidates = [
        path
        for path in tree.scan.others
        if path.lower().endswith(".json") and path.count("/") <= 2 and not _OTHER_TASKS.search(os.path.basename(path))
    ]
    candidates = [path for path in candidates if is_coco(tree, path)]
    return [path for path in candidates if _USUAL_NAMES.search(path) or has_lists(tree, path)]


def open_coco(name: str, tree: FileTree, paths: Sequence[str]) -> Data | None:
    """Open COCO files; None where they have boxes only."""
    by_split: dict[str, CocoFile] = {}
    for path in paths:
        file = read_coco(tree, path)
        if file.split in by_split:
            raise DataError(
                f"{name} has two COCO files for {file.split}: {by_split[file.split].path} and {path}.",
                try_="the file itself as the data, or train and val in the files' names",
            )
        by_split[file.split] = file
    files = {split: file for split, file in by_split.items() if file.has_areas}
    if not files:
        return None
    check_dense()
    classes = _classes([*files.values()])
    table = build_table([NamedClass(one, number) for number, one in enumerate(classes)], few(paths))
    notes = [
        f"masks found for segmentation in {few([*map(printable, paths)])}: where areas overlap, the later annotation "
        f"of the file counts; pixels without any are {BACKGROUND}"
    ]
    if table.ignored:
        notes.append(f"pixels of these classes are ignored: {few(table.ignored)}")
    splits = {}
    for split, file in files.items():
        paths_of_images = _ImagePaths(tree.scan.images, file)
        kept = [(image, own) for image in file.images if (own := paths_of_images.find(image["file_name"]))]
        notes += file.notes
        if not kept:
            raise DataError(
                f"none of the images of {file.path} is there.",
                expected=few([image["file_name"] for image in file.images], 3),
                found=few(tree.scan.images, 3) or "no images",
                try_="the folder that holds the JSON file and the folders of images",
            )
        if missing := len(file.images) - len(kept):
            known = {image["id"] for image, _ in kept}
            absent = [image["file_name"] for image in file.images if image["id"] not in known]
            notes.append(f"{counted(missing, 'image')} of {file.path} cannot be found, skipped: {few(absent, 3)}")
        found_paths = PackedStrings(path for _, path in kept)
        masks = _masks(tree.key(file.path), file, [image for image, _ in kept], classes, table)
        splits[split] = RawMasks(tree.keys(found_paths), tree.files(found_paths), masks, [True] * len(kept))
    return build_segmentation(name, "COCO annotations", splits, table.names, table.palette, notes)


def _classes(files: Iterable[CocoFile]) -> list[str]:
    """Return the names of classes: the background, then the categories by id, those of the same name once."""
    categories: dict[str, int] = {}
    for file in files:
        placeholder = _placeholder(file)
        for category in file.categories:
            if category is not placeholder:
                categories.setdefault(category["name"], category["id"])
    return with_background(sorted(categories, key=categories.__getitem__))


def _placeholder(file: CocoFile) -> CocoCategory | None:
    """Return the category that Roboflow adds before the others: it is above all of them, and nothing has it."""
    above = Counter(category.get("supercategory") for category in file.categories)
    used = file.used_categories()
    for category in file.categories:
        if above[category["name"]] == len(file.categories) - 1 > 0 and category["id"] not in used:
            return category
    return None


def _masks(
    origin: str, file: CocoFile, images: Sequence[CocoImage], classes: Sequence[str], table: ClassTable
) -> CocoMasks:
    numbers = {name: int(table.numbers[position]) for position, name in enumerate(classes)}
    by_category = {
        category["id"]: numbers[category["name"]] for category in file.categories if category["name"] in numbers
    }
    return CocoMasks(
        origin,
        PackedStrings(f"image {image['id']} ({image['file_name']})" for image in images),
        np.array([(image.get("height", 0), image.get("width", 0)) for image in images], np.int64).reshape(-1, 2),
        PackedStrings(json.dumps(file.annotations[image["id"]]) for image in images),
        by_category,
    )


class _ImagePaths:
    """The paths of the images that a file names: relative to itself, to the root, or in the folders usual there."""

    def __init__(self, paths: Sequence[str], file: CocoFile) -> None:
        self.paths = set(paths)
        self.by_name = {os.path.basename(path): path for path in paths}
        counts = Counter(map(os.path.basename, paths))
        self.ambiguous = {name for name, count in counts.items() if count > 1}
        folder, name = os.path.split(file.path)
        part = os.path.splitext(name)[0].rsplit("_", 1)[-1]  # train2017 of instances_train2017
        inner = ("", part, file.split, "images", f"images/{part}", f"images/{file.split}", f"{file.split}/images")
        self.folders = [
            os.path.normpath(os.path.join(*above, last))
            for above in ((folder,), (folder, ".."), ("",))
            for last in inner
        ]

    def find(self, name: str) -> str | None:
        name = name.replace("\\", "/")
        for position, folder in enumerate(self.folders):
            path = os.path.normpath(os.path.join(folder, name))
            if path in self.paths:
                self.folders.insert(0, self.folders.pop(position))  # the next one is probably there, too
                return path
        name = os.path.basename(name)
        return None if name in self.ambiguous else self.by_name.get(name)
