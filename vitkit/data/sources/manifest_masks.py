"""The masks that a manifest lists beside its images: the column that has them, and their classes."""

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitkit.data.masks.file_masks import FileMasks
from vitkit.data.sources.class_labels import with_groups
from vitkit.data.sources.dataset import Data, DataError, PackedStrings
from vitkit.data.sources.file_tree import FolderTree
from vitkit.data.sources.folder_scan import FolderScan
from vitkit.data.sources.image_files import FileImages, is_image, is_system_file, without_credentials
from vitkit.data.sources.manifest_rows import Row
from vitkit.data.sources.mask_classes import class_table
from vitkit.data.sources.mask_folders import may_be_masks
from vitkit.data.sources.segmentation import RawMasks, build_segmentation
from vitkit.data.sources.splits import SPLITS
from vitkit.storage.urls import is_url, last_part, redacted
from vitkit.text import few, printable

MASK_COLUMNS = (
    "mask mask_path mask_file mask_filename mask_name masks segmentation segmentation_path segmentation_mask seg "
    "ground_truth gt label_path annotation_path"
).split()
LABELS_TOO = "annotation annotations label labels target".split()  # of classes, or of images that are no masks


@dataclass(frozen=True)
class MaskColumn:
    name: str
    is_certain: bool  # otherwise the files have to be looked into
    is_remote: bool  # some masks are behind a URL


@dataclass(frozen=True)
class ListedMasks:
    """The images of a manifest with their masks, in its order."""

    images: PackedStrings
    masks: PackedStrings  # "" for an image without a mask
    splits: NDArray[np.int8]  # indices of SPLITS
    groups: Sequence[str | None] | None  # of the images; None where no column names any


def find_mask_column(rows: Iterable[Row], names: Sequence[str], images: str, label: str | None) -> MaskColumn | None:
    """Return the column whose cells are names of image files, or empty; `label` names the only one that may be it.

    `images` is the column of the images themselves.
    """
    if label is not None:
        columns = {label: True} if label in names and label != images else {}
    else:
        known = {name.lower(): name for name in reversed(names) if name != images}
        columns = {known[word]: True for word in (*MASK_COLUMNS, *LABELS_TOO) if word in known}
    filled, remote = set[str](), set[str]()
    for _, cells in rows:
        for column in [*columns]:
            cell = cells.get(column)
            if cell is None or (isinstance(cell, str) and not cell.strip()):
                continue
            if not isinstance(cell, str) or not is_image(last_part(cell) if is_url(cell) else cell.strip()):
                del columns[column]
                continue
            filled.add(column)
            if is_url(cell):
                remote.add(column)
        if not columns:
            return None
    chosen = [column for column in columns if column in filled]
    return MaskColumn(chosen[0], chosen[0].lower() in MASK_COLUMNS, chosen[0] in remote) if chosen else None


def open_listed_masks(
    name: str, file: Path, location: str, listed: ListedMasks, column: MaskColumn, notes: Iterable[str]
) -> Data | None:
    """Return the data of a manifest with masks; None where what its column names are no masks.

    Masks are relative to the manifest's folder, images to `location`.
    """
    folder = str(file.parent)
    pairs = [pair for pair in zip(listed.images, listed.masks, strict=True) if pair[1]]
    masks = [*dict.fromkeys(os.path.normpath(mask) for _, mask in pairs)]
    tree = FolderTree(folder, FolderScan(others=_other_files(folder, masks, file.name)))
    if not (column.is_certain or may_be_masks(tree, pairs)):
        return None
    table, table_notes = class_table(name, tree, masks)
    image, mask = pairs[0]
    recognised = (
        f"masks found for segmentation in the column {printable(column.name)}, such as {printable(mask)} of "
        f"{printable(redacted(image))}"
    )
    splits, groups = {}, {}
    for number in dict.fromkeys(listed.splits.tolist()):
        split, chosen = SPLITS[number], np.flatnonzero(listed.splits == number)
        images, own = listed.images.select(chosen), listed.masks.select(chosen)
        splits[split] = RawMasks(
            without_credentials(images),
            FileImages(location, images),
            FileMasks(tree.files(own), own, table),
            [*map(bool, own)],
        )
        groups[split] = [listed.groups[row] for row in chosen.tolist()] if listed.groups is not None else []
    data = build_segmentation(name, "manifest", splits, table.names, table.palette, [recognised, *notes, *table_notes])
    return data if listed.groups is None else replace(data, splits=with_groups(data.splits, groups))


def no_mask_column(name: str, columns: Sequence[str], notes: Iterable[str]) -> DataError:
    """Return the error where masks were asked for and no column names them."""
    return DataError(
        f"{name} has no masks for segmentation.",
        expected=f"a column of names of image files, such as {few(MASK_COLUMNS, 3)}; a cell without one is no mask",
        found=[f"the columns {few([*map(printable, columns)], 8)}", *notes],
    )


def _other_files(folder: str, masks: Iterable[str], manifest: str) -> list[str]:
    """Return the files, other than images, in the manifest's folder and in those on the way to each mask."""
    folders = {""}
    for inner in {os.path.dirname(mask) for mask in masks}:
        folders.add(inner)
        while not os.path.isabs(inner) and inner:
            inner = os.path.dirname(inner)
            folders.add(inner)
    files = []
    for inner in sorted(folders):
        with contextlib.suppress(OSError), os.scandir(os.path.join(folder, inner)) as entries:
            files += [os.path.join(inner, entry.name) for entry in entries if entry.is_file()]
    return sorted(
        path for path in files if path != manifest and not is_image(path) and not is_system_file(os.path.basename(path))
    )
