"""A zip file of images, with class folders inside, read in place."""

import contextlib
import os
import struct
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitkit.data.bounded_read import check_image_bytes, inflate
from vitkit.data.sources.class_labels import RawSplit, build_data
from vitkit.data.sources.dataset import Data, DataError, StoredImage
from vitkit.data.sources.folder_layout import infer_layout
from vitkit.data.sources.image_files import absolute, count_by_extension, is_image, is_system_file
from vitkit.data.sources.member_paths import check_member_path
from vitkit.data.sources.read_ahead import ReadAhead
from vitkit.storage.failures import ObjectError, StorageError
from vitkit.storage.stored_file import BLOCK, open_stored, stored_version
from vitkit.storage.urls import is_url, last_part, redacted

_ENCRYPTED, _UNICODE = 0x1, 0x800  # bits of a member's flags
_START, _HEADER = b"PK\3\4", struct.Struct("<26xHH")  # a member's local header: the lengths of its name and extra field
_NAMES = 512  # bytes of a member's name and extra field that are read along with it
_SUPPORTED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class ZipImages:
    """Members of a zip file by their offsets: a worker need not parse the directory of a million members."""

    def __init__(self, file: str, members: Sequence[zipfile.ZipInfo]) -> None:
        self.file = absolute(file)
        self.start, self.packed, self.size, self.method, self.crc = (
            np.array([getattr(member, name) for member in members], dtype=np.int64)
            for name in ("header_offset", "compress_size", "file_size", "compress_type", "CRC")
        )

    def read(self, row: int) -> StoredImage:
        size, stored = int(self.size[row]), self.method[row] == zipfile.ZIP_STORED
        check_image_bytes(max(size, int(self.packed[row])))
        with open_stored(self.file) as file:
            file.seek(int(self.start[row]))
            # one request where the file is remote: its name and extra field are seldom longer
            read = file.read(_HEADER.size + (_NAMES + int(self.packed[row]) if self.is_remote else 0))
            header, rest = read[: _HEADER.size], read[_HEADER.size :]
            if not header.startswith(_START) or len(header) < _HEADER.size:
                raise self._damaged()
            names, length = sum(_HEADER.unpack(header)), int(self.packed[row])
            if len(rest) < names + length:
                file.seek(int(self.start[row]) + _HEADER.size + names)
                rest, names = file.read(length), 0
            packed = rest[names : names + length]
        try:
            content = packed if stored else inflate(packed, size)
        except zlib.error:
            raise self._damaged() from None
        if zlib.crc32(content) != self.crc[row]:
            raise self._damaged()
        return content

    @property
    def is_remote(self) -> bool:
        return is_url(self.file)

    def read_ahead(self, rows: NDArray[np.int64]) -> ReadAhead | None:
        if not self.is_remote or len(rows) < 2:
            return None
        requests = [(row,) for row in dict.fromkeys(rows.tolist())]
        return ReadAhead(self, requests, lambda some: [self.read(row) for row in some])

    def sizes(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.size[rows]

    def identity(self, row: int) -> tuple[object, ...]:
        return redacted(self.file), *stored_version(self.file), int(self.start[row]), int(self.crc[row])

    def sample(self, row: int) -> bytes:
        return b"%d %d" % (self.size[row], self.crc[row])  # the archive's own checksum is of all bytes

    def _damaged(self) -> DataError:
        name = last_part(self.file) if self.is_remote else os.path.basename(self.file)
        return DataError(f"{name} is damaged at this image, or has changed")


def open_zip(name: str, file: str) -> Data:
    """Open a zip file, a path or a URL."""
    try:
        with open_stored(file, block=BLOCK) as stream, zipfile.ZipFile(stream) as archive:
            members = [(path, info) for info in archive.infolist() if (path := _path(info)).rpartition("/")[2]]
    except StorageError:
        raise
    except ObjectError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}.") from error
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
    shown = last_part(file) if is_url(file) else os.path.basename(file)
    layout = infer_layout(name, [path for path, _ in images], packed=True)
    splits = {
        split: RawSplit(
            [f"{shown}/{images[row][0]}" for row in rows],
            ZipImages(file, [images[row][1] for row in rows]),
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
