"""Image files: which names count as images, how they are read, and how messages list files."""

import os
from collections import Counter
from collections.abc import Collection, Sequence
from typing import IO

import numpy as np
from numpy.typing import NDArray

from vitkit.data.bounded_read import read_file, read_image_file
from vitkit.data.sources.dataset import PackedStrings
from vitkit.data.sources.read_ahead import ReadAhead
from vitkit.regular_file import open_regular
from vitkit.storage.stored_file import open_stored, stored_size, stored_version
from vitkit.storage.urls import has_credentials, is_url, join, redacted
from vitkit.text import counted, few

# What Pillow reads as images (no documents, videos or data grids), HEIC, and arrays.
EXTENSIONS = frozenset(
    """
    .jpg .jpeg .jpe .jfif .mpo .png .apng .gif .bmp .dib .webp .tif .tiff .avif .avifs .heic .heif .hif .ppm
    .pgm .pbm .pnm .pfm .jp2 .j2k .j2c .jpc .jpf .jpx .tga .icb .vda .vst .pcx .dcx .psd .sgi .rgb .rgba .bw
    .ico .icns .cur .dds .qoi .ras .xbm .xpm .npy
    """.split()
)
PIECE = 4096  # bytes of a sample, which has three
HEIC = frozenset((".heic", ".heif", ".hif"))


class FileImages:
    """Images in files of their own; the paths are relative to a folder, which may be remote, or URLs themselves."""

    def __init__(self, root: str, paths: PackedStrings) -> None:
        self.root = absolute(root)
        self.paths = paths

    def read(self, row: int) -> bytes:
        return read_image_file(self._path(row))

    def read_at_most(self, row: int, most: int) -> bytes:
        return read_file(self._path(row), most)

    def read_start(self, row: int, count: int) -> bytes:
        with open_stored(self._path(row)) as file:
            return bytes(file.read(count))

    def read_ahead(self, rows: NDArray[np.int64]) -> ReadAhead | None:
        remote = [(row,) for row in dict.fromkeys(rows.tolist()) if is_url(self._path(row))]
        return ReadAhead(self, remote, lambda some: [self.read(row) for row in some]) if len(remote) > 1 else None

    @property
    def is_remote(self) -> bool:
        return is_url(self.root) or (len(self.paths) > 0 and is_url(self.paths[0]))

    def sizes(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        # reading an image that is not there says why
        return np.fromiter((stored_size(self._path(row)) or 0 for row in rows.tolist()), np.int64, len(rows))

    def identity(self, row: int) -> tuple[object, ...]:
        path = self._path(row)
        return redacted(path), *stored_version(path)

    def sample(self, row: int) -> bytes:
        path = self._path(row)
        if is_url(path):  # the store's own checksum costs one request, three pieces cost three
            return repr(stored_version(path)).encode()
        with open_regular(path, buffering=0) as file:
            return sample_bytes(file, 0, os.fstat(file.fileno()).st_size)

    def _path(self, row: int) -> str:
        return join(self.root, self.paths[row])


def absolute(folder: str) -> str:
    """Return a folder's absolute path: a worker may have another working directory. A URL is absolute already."""
    return folder if is_url(folder) else os.path.abspath(folder)


def without_credentials(paths: PackedStrings) -> PackedStrings:
    """Return names to print and to record: the same paths, but URLs without their credentials."""
    if b"://" not in bytes(paths.text) or not any(map(has_credentials, paths)):
        return paths
    return PackedStrings(map(redacted, paths))


def sample_bytes(file: IO[bytes], start: int, size: int) -> bytes:
    """Return the size and three pieces of the bytes from `start` on: the first, the middle and the last."""
    pieces = [str(size).encode()]
    for offset in (0, (size - PIECE) // 2, size - PIECE):
        file.seek(start + max(offset, 0))
        pieces.append(file.read(min(PIECE, size)))
    return b" ".join(pieces)


def extension(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def is_image(name: str) -> bool:
    return extension(name) in EXTENSIONS


def is_system_file(name: str) -> bool:
    """Return whether an operating system left the file behind; `._a.jpg` is not an image, despite its name."""
    return name.startswith(".") or name.lower() in ("__macosx", "thumbs.db", "desktop.ini", "@eadir", "$recycle.bin")


def no_label_column_note(names: Sequence[str], others: Sequence[str]) -> str:
    """Return a note for a table without a column of a usual label name; one of `others` may hold the labels."""
    choice = f"; --label COLUMN uses another column: {few(others, 8)}" if others else ""
    return f"no label column ({', '.join(names)}): unlabelled{choice}"


def count_by_extension(paths: Collection[str], count: int = 5) -> str:
    """Return text such as "214 .heic files, 3 .txt files in 3 folders"."""
    if not paths:
        return "no files"
    kinds = Counter(extension(path) or "extensionless" for path in paths).most_common()
    folders = {os.path.dirname(path) for path in paths}
    return few(
        [counted(number, f"{kind} file") for kind, number in sorted(kinds, key=lambda k: (-k[1], k[0]))], count
    ) + (f" in {counted(len(folders), 'folder')}" if folders != {""} else "")
