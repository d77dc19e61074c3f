"""The files in a zip archive, read in place by their offsets."""

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.bounded_read import check_bytes, check_image_bytes, inflate
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.image_files import absolute
from vitkit.data.sources.read_ahead import ReadAhead
from vitkit.storage.stored_file import open_stored, stored_version
from vitkit.storage.urls import is_url, last_part, redacted

_START, _HEADER = b"PK\3\4", struct.Struct("<26xHH")  # a member's local header: the lengths of its name and extra field
_NAMES = 512  # bytes of a member's name and extra field that are read along with it
_PACKED_START = 1 << 16  # bytes that are read for the start of a member
_FIELDS = ("header_offset", "compress_size", "file_size", "compress_type", "CRC")


class ZipFiles:
    """Members of a zip file by their offsets: a worker need not parse the directory of a million members.

    None stands for a member that is never read.
    """

    def __init__(self, file: str, members: Sequence[zipfile.ZipInfo | None]) -> None:
        self.file = absolute(file)
        self.start, self.packed, self.size, self.method, self.crc = (
            np.array([0 if member is None else getattr(member, name) for member in members], dtype=np.int64)
            for name in _FIELDS
        )

    def read(self, row: int) -> bytes:
        return self._content(row, check_image_bytes)

    def read_at_most(self, row: int, most: int) -> bytes:
        return self._content(row, lambda size: check_bytes(size, most))

    def read_start(self, row: int, count: int) -> bytes:
        """Return the first bytes of a member, of which no checksum is known."""
        with open_stored(self.file) as file:
            packed = self._packed(file, row, min(int(self.packed[row]), _PACKED_START))
        if self._is_stored(row):
            return packed[:count]
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, count)
        except zlib.error:
            raise self._damaged() from None

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

    def _content(self, row: int, check: Callable[[int], None]) -> bytes:
        """Return a member, decompressed and compared with its checksum; its stated sizes are checked first."""
        size, length = int(self.size[row]), int(self.packed[row])
        check(max(size, length))
        with open_stored(self.file) as file:
            packed = self._packed(file, row, length)
        try:
            content = packed if self._is_stored(row) else inflate(packed, size)
        except zlib.error:
            raise self._damaged() from None
        if zlib.crc32(content) != self.crc[row]:
            raise self._damaged()
        return content

    def _packed(self, file: IO[Any], row: int, length: int) -> bytes:
        """Return the first bytes of a member as they are stored."""
        file.seek(int(self.start[row]))
        # one request where the file is remote: its name and extra field are seldom longer
        read = file.read(_HEADER.size + (_NAMES + length if self.is_remote else 0))
        header, rest = read[: _HEADER.size], read[_HEADER.size :]
        if not header.startswith(_START) or len(header) < _HEADER.size:
            raise self._damaged()
        names = sum(_HEADER.unpack(header))
        if len(rest) < names + length:
            file.seek(int(self.start[row]) + _HEADER.size + names)
            rest, names = file.read(length), 0
        return bytes(rest[names : names + length])

    def _is_stored(self, row: int) -> bool:
        return bool(self.method[row] == zipfile.ZIP_STORED)

    def _damaged(self) -> DataError:
        name = last_part(self.file) if self.is_remote else os.path.basename(self.file)
        return DataError(f"{name} is damaged at this file, or has changed")
