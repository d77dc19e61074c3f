"""Picture files: which names count as one, how they are read, and how a message tells what was found."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence

from vitkit.data.sources.base import Names
from vitkit.text import counted, few

# What Pillow reads as pictures (no documents, films or data grids), HEIC, and arrays.
EXTENSIONS = frozenset(
    """
    .jpg .jpeg .jpe .jfif .mpo .png .apng .gif .bmp .dib .webp .tif .tiff .avif .avifs .heic .heif .hif .ppm
    .pgm .pbm .pnm .pfm .jp2 .j2k .j2c .jpc .jpf .jpx .tga .icb .vda .vst .pcx .dcx .psd .sgi .rgb .rgba .bw
    .ico .icns .cur .dds .qoi .ras .xbm .xpm .npy
    """.split()  # noqa: SIM905
)
HEIC = frozenset((".heic", ".heif", ".hif"))


class FilePictures:
    def __init__(self, root: str, paths: Names) -> None:
        self.root = os.path.abspath(root)  # a worker may run in another folder
        self.paths = paths

    def read(self, row: int) -> bytes:
        with open(os.path.join(self.root, self.paths[row]), "rb") as file:
            return file.read()


def extension(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def is_picture(name: str) -> bool:
    return extension(name) in EXTENSIONS


def is_rubbish(name: str) -> bool:
    """What systems leave behind; a `._a.jpg` is no picture, whatever its name says."""
    return name.startswith(".") or name.lower() in ("__macosx", "thumbs.db", "desktop.ini", "@eadir", "$recycle.bin")


def no_column(words: Sequence[str], others: Sequence[str]) -> str:
    """A note for a table in which no column is called as labels usually are; `others` may hold them all the same."""
    choice = f"; --label COLUMN takes another of its columns: {few(others, 8)}" if others else ""
    return f"no column of labels ({', '.join(words)}): unlabelled{choice}"


def by_extension(paths: Collection[str], count: int = 5) -> str:
    """214 .heic files, 3 .txt files in 3 folders"""
    if not paths:
        return "no files"
    kinds = Counter(extension(path) or "extensionless" for path in paths).most_common()
    folders = {os.path.dirname(path) for path in paths}
    return few(
        [counted(number, f"{kind} file") for kind, number in sorted(kinds, key=lambda k: (-k[1], k[0]))], count
    ) + (f" in {counted(len(folders), 'folder')}" if folders != {""} else "")
