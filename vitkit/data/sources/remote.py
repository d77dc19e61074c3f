"""Open DATA behind a URL: a folder of images, a manifest, shards with an index or without, or a zip file.

Manifests and the index of shards are copied to the local cache; images are read in place.
"""

from dataclasses import replace

from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.folders import open_folder
from vitkit.data.sources.image_files import is_image, is_system_file
from vitkit.data.sources.manifest import ENDINGS, open_manifest
from vitkit.data.sources.shards import INDEX, INDEX_ARRAYS, PARTIAL_INDEX, open_shards
from vitkit.data.sources.tars import open_tars
from vitkit.data.sources.zips import open_zip
from vitkit.data.task import Task
from vitkit.storage.failures import StorageError
from vitkit.storage.local_copies import local_copy, local_copy_if_any
from vitkit.storage.remote import list_files
from vitkit.storage.urls import WEB, join, last_part, parent, redacted, scheme

_KINDS = (
    "a folder of images, or a .zip of one",
    "a manifest (.csv, .tsv, .jsonl)",
    "shards (.tar or a folder of them)",
)
_COMPRESSED = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst")


def open_remote(url: str, label: str | None, group: str | None, task: Task) -> Data:
    shown, file = redacted(url), last_part(url)
    ending = file.lower()
    if ending.endswith(ENDINGS):
        data = open_manifest(shown, local_copy(url), label=label, group=group, location=parent(url), task=task)
        return replace(data, name=shown)
    if label is not None:
        raise DataError(f"{shown} has no columns, so --label {label} does not apply.")
    if ending.endswith(".tar"):
        return open_tars(shown, parent(url), [_file_in_folder(url)])
    if ending.endswith(".zip"):
        return open_zip(shown, url)
    if file in (INDEX, INDEX_ARRAYS):
        return _open_folder(shown, parent(url))
    if ending.endswith((".npz", *_COMPRESSED)) or is_image(file):
        raise DataError(
            f"{shown} is not data that vitkit reads from a URL.",
            expected=_KINDS,
            try_="the folder it is in" if is_image(file) else "download it, then name the file",
        )
    return _open_folder(shown, url)


def _open_folder(shown: str, url: str) -> Data:
    index = local_copy_if_any(join(url, INDEX))
    arrays = local_copy_if_any(join(url, INDEX_ARRAYS)) if index else None
    if index and arrays:
        return open_shards(shown, index.parent, url)
    try:
        names = list_files(url)
    except StorageError as error:
        if scheme(url) in WEB:
            error.add(try_="the URL of a manifest, which lists the images of a web server")
        raise
    if PARTIAL_INDEX in names:
        raise DataError(f"{shown} holds shards whose writing was interrupted.", try_="vitkit shard again, then copy it")
    top = [name for name in names if not any(map(is_system_file, name.split("/")))]
    if not top:
        raise DataError(f"{shown} does not exist, or is empty.", expected=_KINDS)
    tars = sorted(name for name in top if name.lower().endswith(".tar") and "/" not in name)
    if tars and not any("/" in name or is_image(name) for name in top):
        return open_tars(shown, url, tars)
    return open_folder(shown, url)


def _file_in_folder(url: str) -> str:
    """Return the name of a file to join with its folder; the URL itself where a query belongs to it."""
    return url if scheme(url) in WEB and ("?" in url or "#" in url) else last_part(url)
