"""Arrays in .npz files that are memory-mapped: opened at once whatever their size, and shared between processes.

numpy maps no member of an .npz. One that is not compressed lies in the file as it is in memory, so it can be mapped;
pages that are never read are never loaded, and all processes of a machine share those that are. `write_npz` puts the
values of each array on a boundary of 64 bytes, and writes arrays block by block: they may be larger than the memory.
"""

import io
import mmap
import struct
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vitkit.data.bounded_read import read_npy_header
from vitkit.regular_file import open_regular

ALIGNMENT = 64  # bytes; a .npy header is a multiple of it, too
_LOCAL_HEADER, _ZIP64_EXTRA = 30, 20  # bytes of a member's header before its name, and of the sizes behind it
_PADDING_ID = 0xD935  # of the extra field by which Android's zipalign moves a member


class Blocks(NamedTuple):
    """A one-dimensional array that comes in blocks."""

    dtype: DTypeLike
    length: int
    blocks: Iterable[NDArray[Any]]


def write_npz(file: IO[bytes], arrays: Mapping[str, Blocks | NDArray[Any]]) -> None:
    """Write arrays uncompressed and aligned; the same arrays give the same bytes, however they are cut into blocks."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            member = Blocks(array.dtype, len(array), [array]) if isinstance(array, np.ndarray) else array
            _write_member(file, archive, name, member)


def _write_member(file: IO[bytes], archive: zipfile.ZipFile, name: str, member: Blocks) -> None:
    dtype = np.dtype(member.dtype).newbyteorder("<")
    info = zipfile.ZipInfo(f"{name}.npy")  # no time: the same arrays give the same bytes
    info.create_system = 3  # zipfile has that of the machine otherwise
    header = _LOCAL_HEADER + len(info.filename.encode()) + _ZIP64_EXTRA
    padding = -(file.tell() + header) % ALIGNMENT
    if padding:
        padding += ALIGNMENT * (padding < 4)  # an extra field has four bytes at least
        info.extra = struct.pack("<HH", _PADDING_ID, padding - 4) + bytes(padding - 4)
    written = 0
    with archive.open(info, "w", force_zip64=True) as stream:
        start = io.BytesIO()
        description = np.lib.format.dtype_to_descr(dtype)
        np.lib.format.write_array_header_1_0(
            start, {"descr": description, "fortran_order": False, "shape": (member.length,)}
        )
        stream.write(start.getvalue())
        for block in member.blocks:
            written += len(block)
            if len(block):  # memoryview casts no empty array
                stream.write(np.ascontiguousarray(block, dtype).data.cast("B"))
    if written != member.length:
        raise ValueError(f"{name}: {written:,} values, where {member.length:,} were expected")


def map_npz(path: str | Path, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
    """Return these arrays of an .npz file, or all: mapped where they are not compressed, else read.

    The file has to be checked before (`check_npz`). It must not be changed in place while it is mapped; a file that
    replaces it does no harm.
    """
    with open_regular(path) as file:
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            headers = {}
            for name in members if names is None else names:
                with archive.open(members[name]) as stream:
                    headers[name] = read_npy_header(stream)
        mapped, arrays = None, {}
        for name, header in headers.items():
            info = members[name]
            count = int(np.prod(header.shape, dtype=object))
            if info.compress_type != zipfile.ZIP_STORED or header.dtype.hasobject or not count:
                file.seek(0)
                with np.load(file, allow_pickle=False) as archive:
                    arrays[name] = archive[name]
                continue
            if mapped is None:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            start = _content_offset(mapped, info) + header.length
            if start + header.nbytes > len(mapped):
                raise ValueError(f"truncated: {name} ends behind the end of the file")
            values = np.frombuffer(mapped, header.dtype, count, start)
            arrays[name] = values.reshape(header.shape, order="F" if header.fortran else "C")
        return arrays


def _content_offset(mapped: mmap.mmap, info: zipfile.ZipInfo) -> int:
    """Return where a member's content begins; only its own header tells how long its name and extra field are."""
    name, extra = struct.unpack_from("<HH", mapped, info.header_offset + 26)
    return info.header_offset + _LOCAL_HEADER + name + extra
