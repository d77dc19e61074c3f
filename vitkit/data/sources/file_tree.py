"""A tree of files by their relative paths, which a folder and an archive both are: masks are found and read in either.

A tree is used while data are opened. The stores of files that it returns go to data workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from vitkit.data.sources.dataset import DataError, ImageStore, PackedStrings
from vitkit.data.sources.folder_scan import FolderScan
from vitkit.data.sources.image_files import FileImages
from vitkit.errors import VitkitError
from vitkit.text import printable


class FileStore(ImageStore, Protocol):
    """A store of files: images, masks and text, each by its row.

    Errors are OSError or VitkitError and state the reason alone: the caller knows the file's name.
    """

    def read(self, row: int) -> bytes:
        """Return an encoded image or mask."""
        ...

    def read_at_most(self, row: int, most: int) -> bytes:
        """Return a file of at most so many bytes."""
        ...

    def read_start(self, row: int, count: int) -> bytes:
        """Return the first bytes of a file; the rest is not read."""
        ...


class FileTree(ABC):
    """Files by relative paths with "/"; `scan` lists them."""

    scan: FolderScan

    @abstractmethod
    def files(self, paths: PackedStrings) -> FileStore:
        """Return a store of these files, in their order; "" stands for a file that is never read."""

    @abstractmethod
    def keys(self, paths: PackedStrings) -> PackedStrings:
        """Return the names of files for messages and as keys of images."""

    def key(self, path: str) -> str:
        return self.keys(PackedStrings([path]))[0]

    def read(self, path: str, most: int) -> bytes:
        """Return a file of at most so many bytes; if it cannot be read, the DataError has its name and the reason."""
        try:
            return self.files(PackedStrings([path])).read_at_most(0, most)
        except (OSError, VitkitError) as error:
            raise DataError(f"{printable(path)} cannot be read: {reason(error)}.") from error

    def read_start(self, path: str, count: int) -> bytes:
        """Return the first bytes of a file; none where it cannot be read."""
        try:
            return self.files(PackedStrings([path])).read_start(0, count)
        except (OSError, VitkitError):
            return b""


class FolderTree(FileTree):
    """The files below a local folder."""

    def __init__(self, root: str, scan: FolderScan | None = None) -> None:
        self.root, self.scan = root, scan or FolderScan()

    def files(self, paths: PackedStrings) -> FileImages:
        return FileImages(self.root, paths)

    def keys(self, paths: PackedStrings) -> PackedStrings:
        return paths


def reason(error: OSError | VitkitError) -> str:
    """Return why a file cannot be read, without its name."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return error.what.rstrip(".")
