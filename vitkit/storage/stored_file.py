"""A file on disk or behind a URL, opened for reading, for code that seeks: tar and zip archives, indices."""

import io
import os
from typing import IO, Any

from vitkit.regular_file import open_regular
from vitkit.storage import remote
from vitkit.storage.failures import ObjectError
from vitkit.storage.urls import is_url

BLOCK = 4 * 2**20  # bytes of a request while a file is read from end to end


def open_stored(name: str | os.PathLike[str], *, block: int = 0) -> IO[Any]:
    """Open a path or a URL for reading; behind a URL, each read is a request, of at least `block` bytes."""
    if not is_url(name):
        return open_regular(name, buffering=0) if not block else open_regular(name)
    raw = RemoteFile(os.fspath(name))
    if not block:
        return raw  # type: ignore[return-value]
    _ = raw.size  # a missing file is an error here, as on disk
    return io.BufferedReader(raw, block)


def stored_version(name: str) -> tuple[object, ...]:
    """Return what changes when a file does: size and time of modification, or the size and ETag of an object."""
    if is_url(name):
        found = remote.info(name)
        return found.size, found.version
    status = os.stat(name)
    return status.st_size, status.st_mtime_ns


def stored_size(name: str) -> int | None:
    """Return the size of a file in bytes; None where there is none, or the server does not say."""
    if not is_url(name):
        return os.path.getsize(name) if os.path.isfile(name) else None
    try:
        return remote.info(name).size
    except ObjectError:
        return None


class RemoteFile(io.RawIOBase):
    """A URL as a file that is read and sought; each read is one request, and the size is asked for when needed."""

    def __init__(self, url: str):
        self.url, self.position, self._size = url, 0, -1

    @property
    def size(self) -> int:
        if self._size < 0:
            size = remote.info(self.url).size
            if size is None:
                raise ObjectError("the server does not tell its size, so it cannot be read in parts", self.url)
            self._size = size
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.position}.get(whence)
        self.position = offset + (self.size if base is None else base)
        return self.position

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), max(self.size - self.position, 0))
        content = remote.read_range(self.url, self.position, length)
        buffer[: len(content)] = content
        self.position += len(content)
        return len(content)

    def readall(self) -> bytes:
        return self.read()

    def read(self, size: int | None = -1) -> bytes:
        """Return exactly the bytes that are asked for, as a file on disk does, and fewer only at the end."""
        if size is None or size < 0:
            size = max(self.size - self.position, 0)
        content = remote.read_range(self.url, self.position, size)
        self.position += len(content)
        return content
