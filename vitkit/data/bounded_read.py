"""Read files and decompress bytes within limits: a small or sparse file must not become gigabytes of memory.

Sizes that a header states are checked before anything is read, and are never trusted: decompression stops where more
bytes come than were stated.
"""

import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from vitkit.errors import ConfigError, DecodeError
from vitkit.regular_file import open_regular
from vitkit.storage.remote import read
from vitkit.storage.urls import is_url

MAX_IMAGE_BYTES = "VITKIT_MAX_IMAGE_BYTES"
DEFAULT_MAX_IMAGE_BYTES = 512 * 2**20  # an encoded image; an uncompressed one of 170 megapixels fits
SMALL = 128 * 2**20  # bytes that may be decompressed from however few
MAX_RATIO = 200  # decompressed to compressed bytes, above SMALL; deflate reaches 1,030, arrays of photos about 2
UNREMARKABLE = 16_000_000  # pixels that an image of however few bytes may have
MAX_PIXELS_PER_BYTE = (
    100_000  # above that; an empty A4 page of fax-compressed TIFF at 600 dpi has 40,000 by calculation
)
_CHUNK = 2**20
# zipfile's own, those of its decompressors, of encrypted members and of methods that it does not have
_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, NotImplementedError, KeyError)
_LONGEST_NPY_HEADER = 2**16


class TooLarge(DecodeError):
    """A file that needs more memory than the limit allows; the message is one line."""


class NpyHeader(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    length: int  # bytes before the values

    @property
    def nbytes(self) -> int:
        size = self.dtype.itemsize
        for side in self.shape:  # Python's integers do not overflow
            size *= side
        return size


def max_image_bytes() -> int:
    """Return the size in bytes up to which an encoded image is read: the environment's, or 512 MiB."""
    text = os.environ.get(MAX_IMAGE_BYTES) or str(DEFAULT_MAX_IMAGE_BYTES)
    if not text.isdecimal():
        raise ConfigError(f"{MAX_IMAGE_BYTES}={text!r} is not a number of bytes.", try_=str(DEFAULT_MAX_IMAGE_BYTES))
    return int(text)


def check_image_bytes(size: int) -> None:
    if size > (limit := max_image_bytes()):
        raise TooLarge(f"{size:,} bytes, over the limit of {limit:,} for an encoded image ({MAX_IMAGE_BYTES} sets it)")


def check_bytes(size: int, most: int) -> None:
    if size > most:
        raise TooLarge(f"{size:,} bytes, more than the {most:,} that such a file can have")


def read_image_file(path: str | os.PathLike[str]) -> bytes:
    """Read an encoded image, up to the limit of the environment."""
    return _read_checked(path, max_image_bytes(), check_image_bytes)


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """Read a file of at most so many bytes."""
    return _read_checked(path, most, lambda size: check_bytes(size, most))


def _read_checked(path: str | os.PathLike[str], most: int, check: Callable[[int], None]) -> bytes:
    """Read a file, whose size is checked first; it may grow meanwhile, and is read up to the limit.

    Of a URL, one byte more than the limit is asked for: another request for the size would double the cost.
    """
    if is_url(path):
        remote = read(os.fspath(path), most)
        check(len(remote))
        return remote
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        check(size)
        content: bytes = file.read(size + 1)
        if len(content) <= size:
            return content
        chunks = [content]
        while chunk := file.read(_CHUNK):
            chunks.append(chunk)
            check(sum(map(len, chunks)))
        return b"".join(chunks)


def inflate(packed: bytes, size: int) -> bytes:
    """Decompress raw deflate data to the stated size; zlib.error if they are damaged, or hold less or more bytes."""
    check_ratio(size, len(packed))
    content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, size + 1)
    if len(content) != size:
        raise zlib.error(f"more or less than the {size:,} bytes that were stated")
    return content


def check_ratio(size: int, packed: int) -> None:
    """Refuse to decompress so many bytes from so few that they can only be a bomb."""
    if size > SMALL and size > MAX_RATIO * packed:
        raise TooLarge(f"{packed:,} bytes that would decompress to {size:,}, more than {MAX_RATIO} times as many")


def check_pixels(pixels: int, size: int) -> None:
    """Refuse an image with so many pixels in so few bytes that its size can only be made up."""
    if pixels > UNREMARKABLE and pixels > MAX_PIXELS_PER_BYTE * size:
        raise TooLarge(f"{pixels:,} pixels in {size:,} bytes, more than {MAX_PIXELS_PER_BYTE:,} a byte")


def read_npy_header(file: IO[bytes]) -> NpyHeader:
    """Read the header of a .npy file. numpy would read as long a one as the file states, up to 4 GB."""
    start = io.BytesIO(file.read(_LONGEST_NPY_HEADER))
    version = np.lib.format.read_magic(start)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return NpyHeader(*read(start), start.tell())


def load_npy(content: bytes) -> np.ndarray:
    """Return the array of a .npy file without pickled objects; numpy would allocate what its header states first."""
    header = read_npy_header(io.BytesIO(content))
    if header.dtype.hasobject:
        raise ValueError("pickled objects, which are never loaded")
    if header.length + header.nbytes > len(content):
        raise ValueError(f"truncated: {len(content):,} of {header.length + header.nbytes:,} bytes")
    return np.load(io.BytesIO(content), allow_pickle=False)


def check_npz(path: str | Path, names: Iterable[str] | None = None) -> dict[str, NpyHeader]:
    """Read the headers of these arrays of a .npz file, or of all; refuse those that would decompress to a bomb."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        headers = {}
        for name in members if names is None else names:
            with archive.open(members[name]) as file:
                headers[name] = read_npy_header(file)
        unpacked = sum(header.nbytes for name, header in headers.items() if _compressed(members[name]))
        stored = sum(header.nbytes for name, header in headers.items() if not _compressed(members[name]))
    packed = os.path.getsize(path)  # of the whole file: members may overlap, and their headers may lie
    if stored > packed:
        raise ValueError(f"truncated: {stored:,} bytes of arrays in a file of {packed:,}")
    check_ratio(unpacked, packed)
    return headers


def check_zip(path: str | Path) -> None:
    """Refuse an archive whose members would decompress to a bomb."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(info.file_size for info in archive.infolist() if _compressed(info))
    check_ratio(unpacked, os.path.getsize(path))


def read_member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Return a member of a zip file, decompressed up to a limit; ValueError if it is larger, or damaged."""
    try:
        with archive.open(name) as file:
            content = file.read(most + 1)
    except _DAMAGED as error:
        raise ValueError(f"{name} cannot be decompressed: {error}") from error
    if len(content) > most:
        raise TooLarge(f"{name} is larger than {most:,} bytes")
    return content


def _compressed(info: zipfile.ZipInfo) -> bool:
    return info.compress_type != zipfile.ZIP_STORED
