"""YOLO's layout: images/a.jpg and labels/a.txt, with splits above or below, and names of classes in data.yaml."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import numpy as np

from vitkit.data.masks.class_files import find_class_file, find_yaml_of_names, read_class_file
from vitkit.data.masks.class_table import NamedClass, build_table
from vitkit.data.masks.dense_extra import check_dense
from vitkit.data.masks.yolo_masks import BOX, MOST_BYTES, YoloMasks, lines_of
from vitkit.data.sources.dataset import Data, DataError, PackedStrings
from vitkit.data.sources.file_tree import FileTree
from vitkit.data.sources.folder_scan import FolderScan
from vitkit.data.sources.mask_layout import IMAGE_FOLDERS, split_of_folder
from vitkit.data.sources.segmentation import BACKGROUND, RawMasks, build_segmentation, with_background
from vitkit.data.sources.splits import ALL, check_split_spellings
from vitkit.text import few, printable

LABELS = "labels"
NUMBERS_FOUND = "the numbers found in the label files"
_SAMPLED = 50  # label files that are looked into


def find_yolo(scan: FolderScan) -> dict[str, str]:
    """Return image → its label file, "" where there is none; {} where a folder has no such files."""
    texts = {path for path in scan.others if path.lower().endswith(".txt") and LABELS in path.split("/")}
    if not texts:
        return {}
    pairs = {}
    for image in scan.images:
        parts = os.path.splitext(image)[0].split("/")
        positions = [position for position, part in enumerate(parts[:-1]) if part.lower() in IMAGE_FOLDERS]
        if positions:
            parts[positions[-1]] = LABELS
            text = "/".join(parts) + ".txt"
            pairs[image] = text if text in texts else ""
    return pairs if any(pairs.values()) else {}


def find_shapes(tree: FileTree, pairs: dict[str, str]) -> Literal["polygons", "boxes", ""]:
    """Return what the lines of label files are: polygons, at least some of them; boxes; or something else."""
    labels = [text for text in pairs.values() if text]
    lengths = {len(words) for words in _sample(tree, labels) if all(map(_is_number, words))}
    if any(length > BOX for length in lengths):
        return "polygons"
    return "boxes" if BOX in lengths else ""


def open_yolo(name: str, tree: FileTree, pairs: dict[str, str]) -> Data:
    """Open images with polygons in text files."""
    labels = [text for text in pairs.values() if text]
    check_dense()
    classes, origin = _classes(tree, labels)
    names = with_background(classes.values())
    table = build_table([NamedClass(one, position) for position, one in enumerate(names)], origin)
    numbers = {number: int(table.numbers[names.index(one)]) for number, one in classes.items()}
    notes = [
        f"polygons found for segmentation, such as {printable(labels[0])}: where they overlap, the later line counts; "
        f"pixels without any are {BACKGROUND}",
        f"names of classes from {printable(origin)}"
        + ("; data.yaml beside the folders, with names: [cat, dog], gives them names" * (origin == NUMBERS_FOUND)),
    ]
    if table.ignored:
        notes.append(f"pixels of these classes are ignored: {few(table.ignored)}")
    by_split: dict[str, list[str]] = {}
    spellings = set[str]()
    for image in pairs:
        named = [part for part in image.split("/")[:-1] if split_of_folder(part)]
        spellings.update(part.lower() for part in named[:1])
        by_split.setdefault((split_of_folder(named[0]) if named else None) or ALL, []).append(image)
    check_split_spellings(name, spellings)
    if len(by_split) > 1 and (loose := by_split.pop(ALL, None)):
        notes.append(f"in no split, skipped: {few([*map(printable, loose)], 3)}")
    splits = {}
    for split, images in by_split.items():
        paths, texts = PackedStrings(images), PackedStrings(pairs[image] for image in images)
        masks = YoloMasks(tree.files(texts), tree.keys(texts), numbers, origin)
        splits[split] = RawMasks(tree.keys(paths), tree.files(paths), masks, [*map(bool, texts)])
    return build_segmentation(name, "YOLO polygons", splits, table.names, table.palette, notes)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _sample(tree: FileTree, labels: Sequence[str]) -> list[list[str]]:
    """Return the words of the lines of some label files."""
    chosen = [labels[index] for index in np.linspace(0, len(labels) - 1, min(_SAMPLED, len(labels))).astype(int)]
    words = []
    for label in chosen:
        try:
            words += [line.split() for line in lines_of(tree.read(label, MOST_BYTES))]
        except DataError:  # reading its mask says so
            continue
    return words


def _classes(tree: FileTree, labels: Sequence[str]) -> tuple[dict[int, str], str]:
    """Return number → class and where they are from: a file of names, or the numbers in the labels."""
    outside = [path for path in tree.scan.others if LABELS not in path.split("/")[:-1]]
    if file := find_class_file(outside) or find_yaml_of_names(tree, outside):
        named = read_class_file(tree, file)
        return {position if one.number is None else one.number: one.name for position, one in enumerate(named)}, file
    lines = (line for label in labels for line in lines_of(tree.read(label, MOST_BYTES)))
    numbers = {words[0] for line in lines if (words := line.split())}
    known = sorted(int(number) for number in numbers if number.isdecimal())
    return {number: f"class {number}" for number in known}, NUMBERS_FOUND
