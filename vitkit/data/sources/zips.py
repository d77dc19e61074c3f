"""A zip file of pictures, as people send them: folders of classes inside, read in place."""

from __future__ import annotations

import contextlib
import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitkit.data.sources.assemble import Part, assemble
from vitkit.data.sources.base import Data, DataError, Picture
from vitkit.data.sources.files import by_extension, is_picture, is_rubbish
from vitkit.data.sources.layout import arrange

_ENCRYPTED, _UNICODE = 0x1, 0x800  # bits of a member's flags
_START, _HEADER = b"PK\3\4", struct.Struct("<26xHH")  # what stands before a member: the lengths of its name and notes
_READ = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class ZipPictures:
    """Members of a zip file by their places in it: a process that reads some of a million need not know of all."""

    def __init__(self, file: str, members: Sequence[zipfile.ZipInfo]) -> None:
        self.file = os.path.abspath(file)
        self.start, self.size, self.method, self.crc = (
            np.array([getattr(member, name) for member in members], dtype=np.int64)
            for name in ("header_offset", "compress_size", "compress_type", "CRC")
        )

    def read(self, row: int) -> Picture:
        with open(self.file, "rb", buffering=0) as file:
            file.seek(int(self.start[row]))
            header = file.read(_HEADER.size)
            if not header.startswith(_START) or len(header) < _HEADER.size:
                raise self._damaged()
            file.seek(sum(_HEADER.unpack(header)), os.SEEK_CUR)  # its name, and whatever else was noted
            packed = file.read(int(self.size[row]))
        try:
            content = packed if self.method[row] == zipfile.ZIP_STORED else zlib.decompress(packed, -zlib.MAX_WBITS)
        except zlib.error:
            raise self._damaged() from None
        if zlib.crc32(content) != self.crc[row]:
            raise self._damaged()
        return content

    def _damaged(self) -> DataError:
        return DataError(f"{os.path.basename(self.file)} is damaged there, or has changed")


def open_zip(name: str, file: Path) -> Data:
    try:
        with zipfile.ZipFile(file) as archive:
            inside = [(path, info) for info in archive.infolist() if not (path := _path(info)).endswith("/")]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise DataError(
            f"{name} is no zip file, or not a whole one: {error}.", try_="copy or download it again"
        ) from error
    inside = [one for one in inside if not any(map(is_rubbish, one[0].split("/")))]
    pictures = sorted((one for one in inside if is_picture(one[0])), key=lambda one: one[0].split("/"))
    others = [path for path, _ in inside if not is_picture(path)]
    if not pictures:
        raise DataError(
            f"{name} has no pictures I can use.",
            looked_for="CLASS/*.jpg, or SPLIT/CLASS/*.jpg",
            found=by_extension(others) or "nothing",
            try_="a zip file of pictures, not packed again inside",
        )
    if any(info.flag_bits & _ENCRYPTED for _, info in pictures):
        raise DataError(f"{name} is locked with a password.", try_="unpack it, and name the folder")
    if any(info.compress_type not in _READ for _, info in pictures):
        raise DataError(f"{name} is packed in a way that cannot be read here.", try_="unpack it, and name the folder")
    layout = arrange(name, [path for path, _ in pictures], packed=True)
    parts = {
        split: Part(
            [f"{file.name}/{pictures[row][0]}" for row in rows],
            ZipPictures(str(file), [pictures[row][1] for row in rows]),
            layout.labels[split],
        )
        for split, rows in layout.rows.items()
    }
    notes = [f"not pictures, left out: {by_extension(others)}"] if others else []
    return assemble(name, "zip file", parts, notes=[*notes, *layout.notes])


def _path(info: zipfile.ZipInfo) -> str:
    """Many tools write UTF-8 and do not say so; Python then reads it as IBM's code page 437."""
    path = info.filename
    if not info.flag_bits & _UNICODE:
        with contextlib.suppress(UnicodeError):
            path = path.encode("cp437").decode("utf-8")
    return path.replace("\\", "/").removeprefix("./")  # Windows' own packer wrote backslashes for years
