"""The number of pixels that an image's header states, read without a decoder: for budgets and the cost of decoding.

It reads a few bytes at fixed positions and walks over a bounded number of segments, so it may run in the server's own
process. A header can lie; `decode_upload` finds that out, and refuses an image with more pixels than were counted.
"""

import re
import struct
from itertools import islice

from vitkit.data.pnm import BINARY_PNM, read_pnm_header
from vitkit.errors import DecodeError
from vitkit.serve.image_formats import JPEG_SCAN, MAX_JPEG_SEGMENTS, first_gif_frame, jpeg_segments, tiff_tags

_SIZE_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # SOF0 to SOF15 of a JPEG
_NPY_SHAPE = re.compile(rb"'shape': \((\d{1,9}), (\d{1,9})")
_ISPE = re.compile(rb"\0\0\0\x14ispe....(........)", re.DOTALL)  # the size of an image in AVIF and HEIC
_HEAD = 65536  # bytes in which the boxes of AVIF and HEIC state sizes
_TIFF_WIDTH, _TIFF_LENGTH = 256, 257
MAX_BLOCKS = 1_000  # of a GIF, before the first frame


def stated_pixels(content: bytes) -> int:
    """Return the pixels of an image as its header states them, or 0 where it states nothing."""
    try:
        width, height = _size(content)
    except (struct.error, OverflowError, DecodeError):
        return 0
    return abs(width * height)


def _size(content: bytes) -> tuple[int, int]:
    start = content[:30]
    if start.startswith(b"\xff\xd8"):
        return _jpeg_size(content)
    if start.startswith(b"\x89PNG"):
        return struct.unpack_from(">II", start, 16)
    if start.startswith(b"GIF8"):
        return _gif_size(content)
    if start.startswith(b"BM"):
        return struct.unpack_from("<ii" if struct.unpack_from("<I", start, 14)[0] != 12 else "<HH", start, 18)
    if start.startswith(b"RIFF"):
        return _webp_size(start)
    if start.startswith((b"II", b"MM")):
        return _tiff_size(content)
    if start[4:8] == b"ftyp":
        sizes = [struct.unpack(">II", match[1]) for match in _ISPE.finditer(content, 0, _HEAD)]
        return max(sizes, key=lambda size: size[0] * size[1], default=(0, 0))
    if start.startswith(BINARY_PNM):
        height, width, *_ = read_pnm_header(content)
        return width, height
    match = _NPY_SHAPE.search(content, 0, 1024) if start.startswith(b"\x93NUMPY") else None
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _jpeg_size(content: bytes) -> tuple[int, int]:
    for marker, offset in islice(jpeg_segments(content), MAX_JPEG_SEGMENTS):
        if marker in _SIZE_MARKERS:
            height, width = struct.unpack_from(">HH", content, offset + 3)
            return width, height
        if marker == JPEG_SCAN:  # the size comes before it; the search for what follows would go through all its bytes
            break
    return 0, 0


def _gif_size(content: bytes) -> tuple[int, int]:
    """Return the size of the canvas, which Pillow enlarges where the first frame exceeds it."""
    width, height = struct.unpack_from("<HH", content, 6)
    left, top, frame_width, frame_height = struct.unpack_from("<HHHH", content, first_gif_frame(content, MAX_BLOCKS))
    return max(width, left + frame_width), max(height, top + frame_height)


def _webp_size(start: bytes) -> tuple[int, int]:
    kind = start[12:16]
    if kind == b"VP8X":  # 24 bits each, less one
        return int.from_bytes(start[24:27], "little") + 1, int.from_bytes(start[27:30], "little") + 1
    if kind == b"VP8L":  # 14 bits each, less one
        bits = int.from_bytes(start[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", start, 26)  # VP8: the upper two bits are a scale
    return width & 0x3FFF, height & 0x3FFF


def _tiff_size(content: bytes) -> tuple[int, int]:
    tags = tiff_tags(content)
    width, length = (max((value for _, value in tags[tag]), default=0) for tag in (_TIFF_WIDTH, _TIFF_LENGTH))
    return width, length
