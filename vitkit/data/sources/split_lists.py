"""Lists of the images of each split, as many published datasets have them: train.txt, annotations/trainval.txt, …"""

import os
from collections.abc import Sequence

from vitkit.data.sources.file_tree import FileTree
from vitkit.data.sources.splits import canonical_split
from vitkit.text import counted, printable

MOST_BYTES = 64 << 20
_FOLDERS = ("", "imagesets/segmentation", "annotations", "splits", "lists", "imagesets")  # in the order to try them


def split_by_lists(tree: FileTree, images: Sequence[str]) -> tuple[dict[str, list[int]], list[str]]:
    """Return the indices of the images of each split, and notes; ({}, []) where no files list them.

    A line begins with the path of an image or with its name, with
    or without its ending; what follows on the line is not read.
    """
    for folder in _FOLDERS:
        lists = [
            path
            for path in tree.scan.others
            if path.lower().endswith(".txt") and os.path.dirname(path).lower() == folder and _split(path)
        ]
        splits = {split: rows for path in lists if (split := _split(path)) and (rows := _read(tree, path, images))}
        if splits:
            return _without_repeats(splits, images, lists)
    return {}, []


def _split(path: str) -> str | None:
    return canonical_split(os.path.splitext(os.path.basename(path))[0])


def _read(tree: FileTree, path: str, images: Sequence[str]) -> list[int]:
    """Return the indices of the images that a file lists; none if most of its lines name no image."""
    by_name: dict[str, int] = {}
    for row, image in enumerate(images):
        name = os.path.basename(image)
        for alias in (os.path.splitext(name)[0], name, image):
            by_name[alias] = row
    text = tree.read(path, MOST_BYTES).decode("utf-8", "replace")
    names = [line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found = (by_name.get(name, by_name.get(os.path.basename(name))) for name in names)
    rows = list(dict.fromkeys(row for row in found if row is not None))
    return rows if 2 * len(rows) >= len(names) else []


def _without_repeats(
    splits: dict[str, list[int]], images: Sequence[str], lists: Sequence[str]
) -> tuple[dict[str, list[int]], list[str]]:
    """Leave out trainval where train and val are listed, too: it repeats them."""
    notes = []
    if {"train", "val", "trainval"} <= splits.keys():
        del splits["trainval"]
    unlisted = len(images) - len(set().union(*splits.values()))
    if unlisted:
        names = ", ".join(printable(path) for path in sorted(lists) if _split(path) in splits)
        notes.append(f"{counted(unlisted, 'image is', 'images are')} in none of {names}, skipped")
    return splits, notes
