"""The classes of mask files: those that a file names, those of a known dataset, or those found in the masks."""

from collections.abc import Sequence

import numpy as np

from vitkit.data.masks.class_files import find_class_file, read_class_file
from vitkit.data.masks.class_table import ClassTable, build_table
from vitkit.data.masks.known_classes import known_classes
from vitkit.data.masks.scan import MaskScan, scan_masks, table_of_scan
from vitkit.data.sources.dataset import PackedStrings
from vitkit.data.sources.file_tree import FileTree
from vitkit.text import few, printable

SAMPLED = 200  # masks whose numbers are read where the classes are known already


def class_table(name: str, tree: FileTree, masks: Sequence[str]) -> tuple[ClassTable, list[str]]:
    """Return the classes of masks, from a file of names, those of a known dataset, or found in the masks; and notes."""
    table, notes = _table(name, tree, masks)
    if table.ignored:
        notes.insert(0, f"pixels of these classes are ignored: {few(table.ignored)}")
    return table, notes


def _table(name: str, tree: FileTree, masks: Sequence[str]) -> tuple[ClassTable, list[str]]:
    files, others = tree.files(PackedStrings(masks)), tree.scan.others
    sample = scan_masks(files, spread(len(masks), SAMPLED))
    if file := find_class_file(others):
        table = build_table(read_class_file(tree, file), file, numbers_found=_numbers(sample))
        return table, [f"names of classes from {printable(file)}"]
    known = None if sample.colours else known_classes(masks, others, _numbers(sample))
    if known is not None:
        return build_table(known.classes, f"the classes of {known.dataset}"), [known.note]
    return table_of_scan(sample if len(masks) <= SAMPLED else scan_masks(files, range(len(masks))), name)


def spread(count: int, most: int) -> list[int]:
    """Return at most so many numbers below `count`, evenly spread."""
    chosen: list[int] = np.linspace(0, count - 1, min(most, count)).astype(int).tolist()
    return chosen


def _numbers(scan: MaskScan) -> set[int]:
    """Return the numbers of masks; those saved as grey RGB are numbers, too."""
    return {*scan.numbers, *((colour & 255 for colour in scan.colours) if scan.is_grey else ())}
