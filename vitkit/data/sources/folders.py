"""A folder of images: class folders, split folders with class folders, or a flat folder."""

import importlib.util
import os
from collections.abc import Collection

from vitkit.data.sources.class_labels import RawSplit, build_data
from vitkit.data.sources.dataset import Data, DataError, PackedStrings
from vitkit.data.sources.file_tree import FolderTree
from vitkit.data.sources.folder_layout import infer_layout
from vitkit.data.sources.folder_scan import FolderScan, scan_folder, scan_remote_folder
from vitkit.data.sources.image_files import HEIC, FileImages, count_by_extension, extension
from vitkit.data.sources.open_masks import no_masks, open_masks
from vitkit.data.task import Task
from vitkit.storage.urls import is_url


def open_folder(name: str, root: str, task: Task = "auto") -> Data:
    """Open a folder for segmentation if it holds masks, otherwise for classification; `task` chooses one of them."""
    try:
        scan = scan_remote_folder(root) if is_url(root) else scan_folder(root)
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}.") from error
    if not _any_readable(scan.images):
        raise _no_images(name, scan)
    notes: list[str] = []
    if task != "classify" and not is_url(root):
        data, notes = open_masks(name, FolderTree(root, scan))
        if data is not None:
            return data
    if task == "segment":
        raise no_masks(name, scan, notes)
    layout = infer_layout(name, scan.images, scan.folders)
    splits = {}
    for split, rows in layout.rows.items():
        paths = PackedStrings(scan.images[row] for row in rows)
        splits[split] = RawSplit(paths, FileImages(root, paths), layout.labels[split])
    return build_data(
        name,
        "class folders" if layout.labelled else "flat folder",
        splits,
        notes=[*layout.notes, *notes, *scan.notes()],
    )


def _any_readable(images: Collection[str]) -> bool:
    """Return whether there is any image besides HEIC without a decoder: one error instead of one for every image."""
    if importlib.util.find_spec("pi_heif"):
        return bool(images)
    return any(extension(path) not in HEIC for path in images)


def _no_images(name: str, scan: FolderScan) -> DataError:
    shown = name.rstrip("/" + os.sep)
    rows = [count_by_extension(scan.images + scan.others)]
    rows += [note for note in scan.notes() if not note.startswith("not images")]
    return DataError(
        f"{name} has no usable images.",
        expected=f"{shown}/CLASS/*.jpg (also train/, val/, test/ above it), {shown}/*.jpg",
        found=rows,
        try_=_hint(shown, scan),
    )


def _hint(shown: str, scan: FolderScan) -> str:
    by_ending = {extension(path): path for path in reversed(scan.others)}
    if scan.images:
        return 'pip install "vitkit[formats]" to read HEIC'
    for endings, hint in (
        ((".csv", ".tsv", ".jsonl"), "give the manifest itself: {}"),
        ((".npz",), "give the array file itself: {}"),
        ((".tar",), "give the tar file itself or the folder it is in: {}"),
        ((".parquet", ".arrow"), f"hf:{shown} if this is a Hugging Face dataset"),
        ((".zip",), "give the zip file itself: {}"),
        ((".gz", ".tgz", ".xz", ".bz2", ".7z", ".rar"), "unpack {} first"),
    ):
        for ending in endings:
            if ending in by_ending:
                return hint.format(f"{shown}/{by_ending[ending]}")
    return "the folder that holds the images, or convert them to JPEG or PNG"
