"""Which pictures a server opens: formats that people send, and of those none that takes far more than it shows.

The one decoder reads whatever Pillow can, which is right for one's own files. Of a stranger's, PostScript would be run
by Ghostscript, an icon may hold a picture larger than it says, and a file of a megabyte may take gigabytes or hours.
"""

from __future__ import annotations

import io
import re
import struct
from collections import defaultdict

import numpy as np
from PIL import Image, UnidentifiedImageError

from vitkit.data.decode import decode
from vitkit.errors import DecodeError

KINDS = "JPEG, PNG, WebP, GIF, BMP, TIFF, HEIC, AVIF, PPM and .npy"
_PNG, _JPEG, _WEBP = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", re.compile(rb"RIFF....WEBP", re.DOTALL)
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_FTYP = re.compile(rb"\0\0..ftyp(heic|heix|hevc|heim|heis|mif1|msf1|avif|avis)", re.DOTALL)
# how a file begins → what Pillow calls it; a file may begin like two, and is opened as the one that was checked
_FORMATS: dict[bytes | tuple[bytes, ...] | re.Pattern[bytes], tuple[str, ...]] = {
    _PNG: ("PNG",),
    _JPEG: ("JPEG",),
    b"GIF8": ("GIF",),
    b"BM": ("BMP",),
    (b"P5", b"P6"): ("PPM",),
    _TIFF: ("TIFF",),
    _WEBP: ("WEBP",),
    _FTYP: ("AVIF", "HEIF"),
    b"\x93NUMPY": (),
}
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")  # of a JPEG, which begins or ends something
_SCAN, _END = 0xDA, 0xD9
MOST_SCANS = 30  # 10 are usual; each goes over the whole picture, 0.14 s for 50 megapixels, and may be 100 bytes
MOST_PIECES = 50_000  # segments, chunks or strips: 30 MB of empty ones keep a reader busy for half a minute
_COMPRESSION, _STRIPS, _TILE_WIDTH, _TILE_LENGTH, _TILES = 259, 273, 322, 323, 324


def pixels_of(content: bytes, *, channels: int, pixel_limit: int) -> np.ndarray:
    """(height, width, channels), as the one decoder gives them; a DecodeError where the picture is not for a server."""
    formats = check(content, channels=channels, pixel_limit=pixel_limit) if content else ()
    return decode(content, channels=channels, pixel_limit=pixel_limit, formats=formats)


def check(content: bytes, *, channels: int, pixel_limit: int) -> tuple[str, ...]:
    """Which of Pillow's formats it is to be opened as; whether it is sound, the decoder finds out."""
    formats = next((formats for start, formats in _FORMATS.items() if _begins(content, start)), None)
    if formats is None:
        raise DecodeError(f"not a picture in any format that is read here: {KINDS}")
    if content.startswith(_JPEG):
        _check_jpeg(content)
    elif content.startswith(_PNG):
        _check_png(content)
    elif content.startswith(_TIFF):
        _check_tiff(content, channels, pixel_limit)
    return formats


def _begins(content: bytes, start: bytes | tuple[bytes, ...] | re.Pattern[bytes]) -> bool:
    return start.match(content) is not None if isinstance(start, re.Pattern) else content.startswith(start)


def _check_jpeg(content: bytes) -> None:
    at = scans = pieces = 0
    while (marker := _MARKER.search(content, at)) and content[marker.start() + 1] != _END:
        scans += content[marker.start() + 1] == _SCAN
        pieces += 1
        if scans > MOST_SCANS or pieces > MOST_PIECES:
            raise DecodeError(f"a JPEG of more than {MOST_SCANS} scans, or of far too many pieces")
        at = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])


def _check_png(content: bytes) -> None:
    at = len(_PNG)
    for _ in range(MOST_PIECES):
        if content[at + 4 : at + 8] in (b"IEND", b""):
            return
        at += 12 + int.from_bytes(content[at : at + 4])
    raise DecodeError("a PNG of far too many pieces")


def _check_tiff(content: bytes, channels: int, limit: int) -> None:
    try:
        tags = _tiff_tags(content)
    except struct.error:
        raise DecodeError("damaged: the TIFF's tags are cut off") from None
    if any(count > MOST_PIECES for tag in (_STRIPS, _TILES) for count, _ in tags[tag]):
        raise DecodeError("a TIFF of far too many pieces")
    width, length = (max((value for _, value in tags[tag]), default=0) for tag in (_TILE_WIDTH, _TILE_LENGTH))
    if width * length > limit:
        raise DecodeError(f"tiles of {width} x {length} pixels, over the limit of {limit:,}")
    # Pillow unpacks what there are pixels for; tifffile, for what Pillow cannot read, unpacks whatever there is
    if any(value != 1 for _, value in tags[_COMPRESSION]) and not (channels in (1, 3) and _pillow_reads(content)):
        raise DecodeError("a compressed TIFF of unusual bands or numbers; without compression it can be read")


def _tiff_tags(content: bytes) -> dict[int, list[tuple[int, int]]]:
    """Of the first page: tag → its count and, where it is one whole number, its value, for each time it stands there;
    readers do not agree on which one holds."""
    order, big = "<" if content[:2] == b"II" else ">", 43 in content[2:4]
    (start,) = struct.unpack_from(f"{order}{'Q' if big else 'I'}", content, 8 if big else 4)
    (number,) = struct.unpack_from(f"{order}{'Q' if big else 'H'}", content, start)
    entry = struct.Struct(f"{order}HH{'Q8s' if big else 'I4s'}")
    if number > MOST_PIECES:
        raise DecodeError("a TIFF of far too many pieces")
    tags: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for place in range(number):
        tag, kind, count, value = entry.unpack_from(content, start + (8 if big else 2) + place * entry.size)
        size = {1: 1, 3: 2, 4: 4, 16: 8}.get(kind, 0)
        tags[tag].append((count, int.from_bytes(value[:size], "little" if order == "<" else "big")))
    return tags


def _pillow_reads(content: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(content), formats=["TIFF"]):
            return True
    except (UnidentifiedImageError, Image.DecompressionBombError):
        return False
