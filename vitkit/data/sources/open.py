"""Open any DATA that a user names as `Data`, or raise an error that says what was expected and found."""

import os
from dataclasses import replace
from pathlib import Path

from vitkit.data.sources import fashion
from vitkit.data.sources.arrays import open_arrays
from vitkit.data.sources.coco_file import is_coco
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.file_tree import FolderTree
from vitkit.data.sources.folders import open_folder
from vitkit.data.sources.group_pattern import group_by_pattern
from vitkit.data.sources.hub import PREFIX, open_hub
from vitkit.data.sources.image_files import is_image, is_system_file
from vitkit.data.sources.manifest import ENDINGS, open_manifest
from vitkit.data.sources.open_masks import no_masks, open_coco_file, remote_masks_note
from vitkit.data.sources.remote import open_remote
from vitkit.data.sources.shards import INDEX, INDEX_ARRAYS, PARTIAL_INDEX, has_index, open_shards
from vitkit.data.sources.tars import open_tars
from vitkit.data.sources.vtab1k import is_vtab1k, open_vtab1k
from vitkit.data.sources.zips import open_zip
from vitkit.data.task import Task
from vitkit.errors import did_you_mean
from vitkit.regular_file import NotRegularFile, check_regular
from vitkit.storage.urls import is_url

KINDS = (
    "a folder of images, or a .zip of one",
    "a manifest (.csv, .tsv, .jsonl)",
    "COCO's annotations (.json)",
    "arrays (.npz)",
    "shards (.tar or a folder of them)",
    "hf:NAME",
    "fashion, the small dataset inside vitkit",
    "s3://, gs://, hf:// or https:// of images, a manifest, shards or a .zip",
)


def open_data(
    source: str | os.PathLike[str], *, label: str | None = None, group: str | None = None, task: Task = "classify"
) -> Data:
    """Open the data; `label` names the label column of a manifest or Hugging Face dataset, if it is ambiguous.

    `group` names the column of a manifest whose images belong together, or is a regular expression for their paths.
    `task` is "segment" for data that must have masks, "auto" for those that may, and "classify" where they are not
    looked for.
    """
    data = _open(source, label, group, task)
    if data.task == "classify" and task == "segment":
        raise no_masks(os.fspath(source), None, [])
    if data.task == "classify" and task == "auto" and (note := remote_masks_note(data)):
        data = replace(data, notes=(*data.notes, note))
    named = os.fspath(source)
    has_columns = (named.startswith(PREFIX) and not is_url(named)) or os.fspath(source).lower().endswith(ENDINGS)
    if group is None or (has_columns and any(split.groups is not None for split in data.splits.values())):
        return data
    return group_by_pattern(data, group)


def _open(source: str | os.PathLike[str], label: str | None, group: str | None, task: Task) -> Data:
    name = os.fspath(source)
    if is_url(name):
        return open_remote(name, label, group, task)
    if label is not None and not name.startswith(PREFIX) and not name.lower().endswith(ENDINGS):
        raise DataError(f"{name} has no columns, so --label {label} does not apply.")
    if name == fashion.NAME and isinstance(source, str):
        data = fashion.open_fashion()
        note = f"the dataset inside the package; write ./{name} for the local file or folder of that name"
        return replace(data, notes=(*data.notes, note)) if os.path.exists(name) else data
    if name.startswith(PREFIX):
        return open_hub(name, label=label, group=group)
    path = Path(name).expanduser()
    if path.is_dir():
        return _open_folder(name, path, task)
    try:
        check_regular(path)
    except NotRegularFile as error:
        raise DataError(f"{name} cannot be read: {error.strerror}.", expected=KINDS) from error
    except OSError:
        raise _missing(name, path) from None
    ending = path.suffix.lower()
    if ending in ENDINGS:
        return open_manifest(name, path, label=label, group=group, task=task)
    if ending == ".npz":
        return open_arrays(name, path)
    if ending == ".tar" or path.name.lower().endswith((".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")):
        return open_tars(name, str(path.absolute().parent), [path.name])
    if ending == ".zip":
        return open_zip(name, str(path.absolute()), task)
    if path.name in (INDEX, INDEX_ARRAYS) and (path.parent / INDEX).is_file():
        return _open_folder(name, path.parent, task)
    if ending == ".json" and task != "classify" and is_coco(FolderTree(str(path.parent)), path.name):
        return open_coco_file(name, path)
    hint = "the folder it is in" if is_image(name) else None
    raise DataError(
        f"{name} is not usable data.",
        expected=KINDS,
        found="a single image" if hint else f"a file that ends in {ending or 'nothing known'}",
        **({"try": hint} if hint else {}),
    )


def _open_folder(name: str, folder: Path, task: Task) -> Data:
    if has_index(folder):
        return open_shards(name, folder)
    if (folder / PARTIAL_INDEX).exists():
        raise DataError(
            f"{name} holds shards whose writing was interrupted.", try_="vitkit shard again, to the same folder"
        )
    if is_vtab1k(folder):
        return open_vtab1k(name, folder)
    entries = [path for path in sorted(_entries(folder)) if not is_system_file(path.name)]
    tars = [path for path in entries if path.suffix.lower() == ".tar" and path.is_file()]
    if tars and not any(path.is_dir() or is_image(path.name) for path in entries):
        return open_tars(name, str(folder.absolute()), [path.name for path in tars])
    return open_folder(name, os.fspath(folder), task)  # a tar file next to images is the archive they came in


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # open_folder reports it
        return []


def _missing(name: str, path: Path) -> DataError:
    near = did_you_mean(path.name, [*(entry.name for entry in _entries(path.parent)), fashion.NAME])
    return DataError(f"{name} does not exist{near or '.'}", expected=KINDS)
