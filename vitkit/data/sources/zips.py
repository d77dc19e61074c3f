"""A zip file of images, with class folders inside, read in place."""

import contextlib
import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitkit.data.bounded_read import check_image_bytes, inflate
from vitkit.data.sources.class_labels import RawSplit, build_data
from vitkit.data.sources.dataset import Data, DataError, StoredImage
from vitkit.data.sources.folder_layout import infer_layout
from vitkit.data.sources.image_files import count_by_extension, file_version, is_image, is_system_file
from vitkit.data.sources.member_paths import check_member_path
from vitkit.regular_file import open_regular

_ENCRYPTED, _UNICODE = 0x1, 0x800  # bits of a member's flags
_START, _HEADER = b"PK\3\4", struct.Struct("<26xHH")  # a member's local header: the lengths of its name and extra field
_SUPPORTED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class ZipImages:
    """Members of a zip file by their offsets: a worker need not parse the directory of a million members."""

    def __init__(self, file: str, members: Sequence[zipfile.ZipInfo]) -> None:
        self.file = os.path.abspath(file)
        self.start, self.packed, self.size, self.method, self.crc = (
            np.array([getattr(member, name) for member in members], dtype=np.int64)
            for name in ("header_offset", "compress_size", "file_size", "compress_type", "CRC")
        )

    def read(self, row: int) -> StoredImage:
        size, stored = int(self.size[row]), self.method[row] == zipfile.ZIP_STORED
        check_image_bytes(max(size, int(self.packed[row])))
        with open_regular(self.file, buffering=0) as file:
            file.seek(int(self.start[row]))
            header = file.read(_HEADER.size)
            if not header.startswith(_START) or len(header) < _HEADER.size:
                raise self._damaged()
            file.seek(sum(_HEADER.unpack(header)), os.SEEK_CUR)  # its name and extra field
            packed = file.read(int(self.packed[row]))
        try:
            content = packed if stored else inflate(packed, size)
        except zlib.error:
            raise self._damaged() from None
        if zlib.crc32(content) != self.crc[row]:
            raise self._damaged()
        return content

    def sizes(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.size[rows]

    def identity(self, row: int) -> tuple[object, ...]:
        return self.file, *file_version(self.file), int(self.start[row]), int(self.crc[row])

    def sample(self, row: int) -> bytes:
        return b"%d %d" % (self.size[row], self.crc[row])  # the archive's own checksum is of all bytes

    def _damaged(self) -> DataError:
        return DataError(f"{os.path.basename(self.file)} is damaged at this image, or has changed")


def open_zip(name: str, file: Path) -> Data:
    try:
        with open_regular(file) as stream, zipfile.ZipFile(stream) as archive:
            members = [(path, info) for info in archive.infolist() if (path := _path(info)).rpartition("/")[2]]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise DataError(
            f"{name} is not a zip file, or is incomplete: {error}.", try_="copy or download it again"
        ) from error
    for path, _ in members:
        check_member_path(name, path)
    members = [member for member in members if not any(map(is_system_file, member[0].split("/")))]
    images = sorted((member for member in members if is_image(member[0])), key=lambda member: member[0].split("/"))
    others = [path for path, _ in members if not is_image(path)]
    if not images:
        raise DataError(
            f"{name} has no usable images.",
            expected="CLASS/*.jpg, or SPLIT/CLASS/*.jpg",
            found=count_by_extension(others) or "nothing",
            try_="a zip file of images, without archives inside",
        )
    if any(info.flag_bits & _ENCRYPTED for _, info in images):
        raise DataError(f"{name} is encrypted with a password.", try_="unpack it and use the folder")
    if any(info.compress_type not in _SUPPORTED for _, info in images):
        raise DataError(f"{name} uses an unsupported compression method.", try_="unpack it and use the folder")
    layout = infer_layout(name, [path for path, _ in images], packed=True)
    splits = {
        split: RawSplit(
            [f"{file.name}/{images[row][0]}" for row in rows],
            ZipImages(str(file), [images[row][1] for row in rows]),
            layout.labels[split],
        )
        for split, rows in layout.rows.items()
    }
    notes = [f"not images, skipped: {count_by_extension(others)}"] if others else []
    return build_data(name, "zip file", splits, notes=[*notes, *layout.notes])


def _path(info: zipfile.ZipInfo) -> str:
    """Return a member's path: many tools write UTF-8 without the flag, and Python then reads it as code page 437."""
    path = info.filename
    if not info.flag_bits & _UNICODE:
        with contextlib.suppress(UnicodeError):
            path = path.encode("cp437").decode("utf-8")
    return path.replace("\\", "/").removeprefix("./")  # Windows wrote backslashes for years
