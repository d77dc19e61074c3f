"""A folder of images and of masks in files of their own: their layout, their splits and their classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from vitkit.data.bounded_read import read_image_file
from vitkit.data.decode import decoded_size
from vitkit.data.masks.class_files import find_class_file, read_class_file
from vitkit.data.masks.class_table import ClassTable, build_table
from vitkit.data.masks.file_masks import FileMasks
from vitkit.data.masks.known_classes import known_classes
from vitkit.data.masks.mask_file import read_mask_file
from vitkit.data.masks.scan import MaskScan, scan_masks, table_of_scan
from vitkit.data.sources.dataset import Data, PackedStrings
from vitkit.data.sources.folder_scan import FolderScan
from vitkit.data.sources.image_files import FileImages, absolute
from vitkit.data.sources.mask_layout import MaskLayout, find_mask_layout
from vitkit.data.sources.segmentation import RawMasks, build_segmentation
from vitkit.data.sources.split_lists import split_by_lists
from vitkit.data.sources.splits import ALL
from vitkit.errors import DecodeError
from vitkit.text import counted, few, printable

SAMPLED = 200  # masks whose numbers are read where the classes are known already
_PEEKED = 5  # masks that are looked into where names alone do not tell masks from classes
_MOST_VALUES = 64  # different numbers of such a mask; photos have more


def open_mask_folder(name: str, root: str, scan: FolderScan) -> Data | None:
    """Open a folder whose masks are image files; None where it holds none."""
    layout = find_mask_layout(name, scan.images)
    if layout is None or not (layout.certain or _may_be_masks(root, layout.pairs)):
        return None
    notes = [*layout.notes]
    if list(layout.images) == [ALL]:
        notes += _apply_lists(root, scan.others, layout)
    masks = [mask for _, mask in layout.pairs]
    table, table_notes = class_table(name, root, masks, scan.others)
    first_image, first_mask = layout.pairs[0]
    notes.insert(0, f"masks found for segmentation, such as {printable(first_mask)} of {printable(first_image)}")
    if table.ignored:
        notes.append(f"pixels of these classes are ignored: {few(table.ignored)}")
    notes += table_notes
    if layout.orphans:
        shown = few([*map(printable, layout.orphans)], 3)
        notes.append(f"{counted(len(layout.orphans), 'mask')} without an image, skipped: {shown}")
    folder = absolute(root)
    splits = {}
    for split, images in layout.images.items():
        keys, paths = PackedStrings(images), PackedStrings(layout.masks[split])
        splits[split] = RawMasks(keys, FileImages(root, keys), FileMasks(folder, paths, table), [*map(bool, paths)])
    return build_segmentation(name, "images and masks", splits, table.names, table.palette, notes)


def class_table(name: str, root: str, masks: Sequence[str], others: Sequence[str]) -> tuple[ClassTable, list[str]]:
    """Return the classes of masks, from a file of names, those of a known dataset, or found in the masks; and notes."""
    paths = [Path(root, mask) for mask in masks]
    few_paths = [paths[index] for index in np.linspace(0, len(paths) - 1, min(SAMPLED, len(paths))).astype(int)]
    if file := find_class_file(others):
        sample = scan_masks(few_paths)
        classes = read_class_file(Path(root, file), file)
        table = build_table(classes, file, numbers_found=_numbers(sample))
        return table, [f"names of classes from {printable(file)}"]
    sample = scan_masks(few_paths)
    known = None if sample.colours else known_classes(masks, others, _numbers(sample))
    if known is not None:
        return build_table(known.classes, f"the classes of {known.dataset}"), [known.note]
    return table_of_scan(sample if len(few_paths) == len(paths) else scan_masks(paths), name)


def _numbers(scan: MaskScan) -> set[int]:
    """Return the numbers of masks; those saved as grey RGB are numbers, too."""
    return {*scan.numbers, *((colour & 255 for colour in scan.colours) if scan.is_grey else ())}


def _apply_lists(root: str, others: Sequence[str], layout: MaskLayout) -> Iterable[str]:
    """Divide the images into the splits that text files list, if there are such files; return notes."""
    images, masks = layout.images[ALL], layout.masks[ALL]
    rows, notes = split_by_lists(root, others, images)
    if rows:
        layout.images = {split: [images[row] for row in chosen] for split, chosen in rows.items()}
        layout.masks = {split: [masks[row] for row in chosen] for split, chosen in rows.items()}
    return notes


def _may_be_masks(root: str, pairs: Sequence[tuple[str, str]]) -> bool:
    """Return whether files are masks by what is in them: few values each, and one at least as large as its image."""
    same_size = False
    for index in sorted({*np.linspace(0, len(pairs) - 1, min(_PEEKED, len(pairs))).astype(int).tolist()}):
        image, mask = pairs[index]
        try:
            stored = read_mask_file(Path(root, mask))
            size = decoded_size(read_image_file(Path(root, image)))
        except (OSError, DecodeError):
            continue
        if stored.lossy or len(np.unique(stored.values)) > _MOST_VALUES:
            return False
        same_size = same_size or stored.size == size
    return same_size
