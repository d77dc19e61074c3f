"""A tree of images and of masks in files of their own: their layout, their splits and their classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from vitkit.data.decode import decoded_size
from vitkit.data.masks.file_masks import FileMasks
from vitkit.data.masks.mask_file import decode_mask
from vitkit.data.sources.dataset import Data, DataError, PackedStrings
from vitkit.data.sources.file_tree import FileTree
from vitkit.data.sources.mask_classes import class_table, spread
from vitkit.data.sources.mask_layout import MaskLayout, find_mask_layout
from vitkit.data.sources.segmentation import RawMasks, build_segmentation
from vitkit.data.sources.split_lists import split_by_lists
from vitkit.data.sources.splits import ALL
from vitkit.errors import VitkitError
from vitkit.text import counted, few, printable

_PEEKED = 5  # masks that are looked into where names alone do not tell masks from classes
_MOST_VALUES = 64  # different numbers of such a mask; photos have more


def open_mask_files(name: str, tree: FileTree) -> Data | None:
    """Open a folder or archive whose masks are image files; None where it holds none."""
    layout = find_mask_layout(name, tree.scan.images)
    if layout is None or not (layout.certain or may_be_masks(tree, layout.pairs)):
        return None
    notes = [*layout.notes]
    if list(layout.images) == [ALL]:
        notes += _apply_lists(tree, layout)
    if not layout.pairs:
        raise DataError(f"{name} has masks, and none of an image in a split.", found=notes)
    table, table_notes = class_table(name, tree, [mask for _, mask in layout.pairs])
    first_image, first_mask = layout.pairs[0]
    notes.insert(0, f"masks found for segmentation, such as {printable(first_mask)} of {printable(first_image)}")
    notes += table_notes
    if layout.orphans:
        shown = few([*map(printable, layout.orphans)], 3)
        notes.append(f"{counted(len(layout.orphans), 'mask')} without an image, skipped: {shown}")
    splits = {}
    for split in layout.images:
        images, masks = PackedStrings(layout.images[split]), PackedStrings(layout.masks[split])
        splits[split] = RawMasks(
            tree.keys(images),
            tree.files(images),
            FileMasks(tree.files(masks), tree.keys(masks), table),
            [*map(bool, masks)],
        )
    return build_segmentation(name, "images and masks", splits, table.names, table.palette, notes)


def _apply_lists(tree: FileTree, layout: MaskLayout) -> Iterable[str]:
    """Divide the images into the splits that text files list, if there are such files; return notes."""
    images, masks = layout.images[ALL], layout.masks[ALL]
    rows, notes = split_by_lists(tree, images)
    if rows:
        layout.images = {split: [images[row] for row in chosen] for split, chosen in rows.items()}
        layout.masks = {split: [masks[row] for row in chosen] for split, chosen in rows.items()}
    return notes


def may_be_masks(tree: FileTree, pairs: Sequence[tuple[str, str]]) -> bool:
    """Return whether files are masks by what is in them: few values each, and one at least as large as its image."""
    same_size = False
    for index in dict.fromkeys(spread(len(pairs), _PEEKED)):
        files = tree.files(PackedStrings(pairs[index]))
        try:
            stored = decode_mask(files.read(1))
            size = decoded_size(files.read(0))
        except (OSError, VitkitError):
            continue
        if stored.lossy or len(np.unique(stored.values)) > _MOST_VALUES:
            return False
        same_size = same_size or stored.size == size
    return same_size
