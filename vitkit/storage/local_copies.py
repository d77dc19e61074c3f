"""Copies of remote files on disk, for what is read as a whole and often: weights, manifests, the index of shards.

A copy is used again while the object's ETag, or its size and time, stay the same. The folder is ~/.cache/vitkit/remote,
or that of XDG_CACHE_HOME, and can be deleted at any time.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from vitkit.atomic import replacing
from vitkit.storage import remote
from vitkit.storage.failures import MissingObject, ObjectError, StorageError
from vitkit.storage.urls import last_part, parent, redacted

PART = 8 * 2**20  # bytes of a request
AHEAD = 4  # parts that are requested before they are written


def cache_folder(kind: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "vitkit" / kind


def folder_of(url: str, kind: str = "remote") -> Path:
    """Return the folder on disk for the files of a remote folder; credentials in the URL make no difference."""
    name = hashlib.blake2b(redacted(url).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return cache_folder(kind) / name


def local_copy(url: str) -> Path:
    """Return a copy of a remote file under its own name, next to the copies from the same folder; it may be there yet.

    A StorageError says why there is none.
    """
    try:
        return _copy(url)
    except ObjectError as error:
        raise StorageError(f"{redacted(url)} cannot be read: {error.strerror}.") from None


def local_copy_if_any(url: str) -> Path | None:
    """Return a copy of a remote file, or None where there is no such file; an older copy is then removed."""
    try:
        return _copy(url)
    except MissingObject:
        path = _path(url)
        path.unlink(missing_ok=True)
        return None
    except ObjectError as error:
        raise StorageError(f"{redacted(url)} cannot be read: {error.strerror}.") from None


def _path(url: str) -> Path:
    return folder_of(parent(url)) / last_part(url)


def _copy(url: str) -> Path:
    found, path = remote.info(url), _path(url)
    record = path.with_name(f".{path.name}.version")
    version = json.dumps([found.size, found.version])
    with contextlib.suppress(OSError):
        if found.version and record.read_text() == version and path.stat().st_size == found.size:
            return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        record.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}.", try_="XDG_CACHE_HOME, another folder"
        ) from None
    with replacing(path, StorageError) as temporary, temporary.open("wb") as file:
        written = 0
        for part in _parts(url, found.size):
            file.write(part)
            written += len(part)
    if found.size not in (None, written):
        path.unlink(missing_ok=True)
        raise ObjectError(f"it has changed while it was read: {written:,} of {found.size:,} bytes", url)
    with replacing(record, StorageError) as temporary:
        temporary.write_text(version)
    return path


def _parts(url: str, size: int | None) -> Iterator[bytes]:
    """Yield the bytes of a file in order; a few requests are always under way."""
    if size is None:
        yield remote.read(url, 2**40)
        return
    starts = range(0, size, PART)

    def get(start: int) -> bytes:
        return remote.read_range(url, start, min(PART, size - start))

    waiting = [remote.in_background(get, start) for start in starts[:AHEAD]]
    for number in range(len(starts)):
        content = waiting.pop(0).result()
        if number + AHEAD < len(starts):
            waiting.append(remote.in_background(get, starts[number + AHEAD]))
        yield content
