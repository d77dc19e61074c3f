"""A folder of pictures, its sub-folders being classes, splits of classes, or nothing at all."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection

from vitkit.data.sources.assemble import Part, assemble
from vitkit.data.sources.base import Data, DataError, Names
from vitkit.data.sources.files import HEIC, FilePictures, by_extension, extension
from vitkit.data.sources.layout import arrange
from vitkit.data.sources.walk import Found, walk


def open_folder(name: str, root: str) -> Data:
    try:
        found = walk(root)
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}.") from error
    readable = _readable(found.pictures)
    if not readable:
        raise _no_pictures(name, found)
    layout = arrange(name, found.pictures, found.folders)
    parts = {}
    for split, rows in layout.rows.items():
        paths = Names(found.pictures[row] for row in rows)
        parts[split] = Part(paths, FilePictures(root, paths), layout.labels[split])
    return assemble(
        name, "class folders" if layout.labelled else "flat folder", parts, notes=[*layout.notes, *found.notes()]
    )


def _readable(pictures: Collection[str]) -> bool:
    """All HEIC and nothing installed that reads it is said here, once, rather than for every picture."""
    if importlib.util.find_spec("pi_heif"):
        return bool(pictures)
    return any(extension(path) not in HEIC for path in pictures)


def _no_pictures(name: str, found: Found) -> DataError:
    shown = name.rstrip("/" + os.sep)
    rows = [by_extension(found.pictures + found.others)]
    rows += [note for note in found.notes() if not note.startswith("not pictures")]
    return DataError(
        f"{name} has no pictures I can use.",
        looked_for=f"{shown}/CLASS/*.jpg (also train/, val/, test/ above it), {shown}/*.jpg",
        found=rows,
        try_=_hint(shown, found),
    )


def _hint(shown: str, found: Found) -> str:
    kinds = {extension(path): path for path in reversed(found.others)}
    if found.pictures:
        return 'pip install "vitkit[formats]" to read HEIC'
    for endings, hint in (
        ((".csv", ".tsv", ".jsonl"), "give the manifest itself: {}"),
        ((".npz",), "give the array file itself: {}"),
        ((".tar",), "give the tar file itself or the folder that it lies in: {}"),
        ((".parquet", ".arrow"), f"hf:{shown} if this is a Hugging Face dataset"),
        ((".zip",), "give the zip file itself: {}"),
        ((".gz", ".tgz", ".xz", ".bz2", ".7z", ".rar"), "unpack {} first"),
    ):
        for ending in endings:
            if ending in kinds:
                return hint.format(f"{shown}/{kinds[ending]}")
    return "the folder that holds the pictures, or convert them to JPEG or PNG"
