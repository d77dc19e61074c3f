"""Input validation of uploaded images: an allow-list of formats, and checks against decompression bombs.

The decoder reads whatever Pillow can, which is right for one's own files. With files from strangers, Ghostscript would
run their PostScript, an icon may hold a larger image than it declares, and a megabyte may unpack to gigabytes.
"""

import io
import re
import struct
from collections import defaultdict
from collections.abc import Iterator

from PIL import Image, UnidentifiedImageError

from vitkit.errors import DecodeError

FORMAT_NAMES = "JPEG, PNG, WebP, GIF, BMP, TIFF, HEIC, AVIF, binary PPM and .npy"
_PNG, _JPEG, _WEBP = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", re.compile(rb"RIFF....WEBP", re.DOTALL)
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_FTYP = re.compile(rb"\0\0..ftyp(heic|heix|hevc|heim|heis|mif1|msf1|avif|avis)", re.DOTALL)
# allow-list: first bytes of a file → Pillow's formats. A file may match two; only the one that was checked is opened
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
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")  # of a JPEG segment; not stuffing, restart markers or fill bytes
JPEG_SCAN, _END = 0xDA, 0xD9
_BMP_RLE = (1, 2)
MAX_JPEG_SCANS = 30  # 10 are usual; each takes only 100 bytes, and decoding it 0.14 s for 50 megapixels
MAX_JPEG_SEGMENTS = 1_000  # a colour profile has up to 255; Pillow's time for those of Exif grows with their square
MAX_JPEG_FILL = 1_024  # bytes between two segments; one or two are usual, and Pillow takes half a second for a million
MAX_TIFF_TAGS = 1_000  # of a page; 15 are usual, some microscopes and cameras write a hundred or two
MAX_SEGMENTS = 50_000  # or chunks or strips: 30 MB of empty ones keep a decode thread busy for half a minute
_COMPRESSION, _STRIPS, _TILE_WIDTH, _TILE_LENGTH, _TILES = 259, 273, 322, 323, 324


def check_format(content: bytes, *, channels: int, pixel_limit: int) -> tuple[str, ...]:
    """Return Pillow's names of the format to open it as; whether the file is intact, the decoder finds out."""
    formats = next((formats for signature, formats in _FORMATS.items() if _starts_with(content, signature)), None)
    if formats is None:
        raise DecodeError(f"not an image in an accepted format: {FORMAT_NAMES}")
    if content.startswith(_JPEG):
        _check_jpeg(content)
    elif content.startswith(_PNG):
        _check_png(content)
    elif content.startswith(_TIFF):
        _check_tiff(content, channels, pixel_limit)
    elif content.startswith(b"GIF8"):
        first_gif_frame(content)
    elif content.startswith(b"BM"):
        _check_bmp(content)
    return formats


def _starts_with(content: bytes, signature: bytes | tuple[bytes, ...] | re.Pattern[bytes]) -> bool:
    return signature.match(content) is not None if isinstance(signature, re.Pattern) else content.startswith(signature)


def _check_jpeg(content: bytes) -> None:
    scans = 0
    for segments, (marker, _) in enumerate(jpeg_segments(content), 1):
        scans += marker == JPEG_SCAN
        if scans > MAX_JPEG_SCANS or segments > MAX_JPEG_SEGMENTS:
            raise DecodeError(f"a JPEG with more than {MAX_JPEG_SCANS} scans or {MAX_JPEG_SEGMENTS:,} segments")


def jpeg_segments(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield the marker of each segment, and the offset of its length; DecodeError for too many bytes between two.

    Pillow goes through what is between segments in Python, byte by byte, until the first scan.
    """
    offset, scanned = len(b"\xff\xd8"), False
    while True:
        marker = _MARKER.search(content, offset, len(content) if scanned else offset + MAX_JPEG_FILL)
        if marker is None and not scanned and len(content) > offset + MAX_JPEG_FILL:
            raise DecodeError(f"damaged: a JPEG with more than {MAX_JPEG_FILL:,} bytes between two segments")
        if marker is None or content[marker.start() + 1] == _END:
            return
        yield content[marker.start() + 1], marker.end()
        scanned |= content[marker.start() + 1] == JPEG_SCAN
        offset = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])


def _check_png(content: bytes) -> None:
    offset = len(_PNG)
    for _ in range(MAX_SEGMENTS):
        if content[offset + 4 : offset + 8] in (b"IEND", b""):
            return
        offset += 12 + int.from_bytes(content[offset : offset + 4])
    raise DecodeError(f"a PNG with more than {MAX_SEGMENTS:,} chunks")


def first_gif_frame(content: bytes, most: int = MAX_SEGMENTS) -> int:
    """Return where the first frame's position and size begin; DecodeError with more than so many blocks before it.

    Pillow goes through the blocks in Python, and skips unknown bytes as well.
    """
    flags = content[10] if len(content) > 10 else 0
    offset, blocks = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0), 0
    while (kind := content[offset : offset + 1]) not in (b"", b",", b";"):
        offset += 2 if kind == b"!" else 1
        while kind == b"!" and (length := int.from_bytes(content[offset : offset + 1])):
            offset += 1 + length
            blocks = _count_gif_block(blocks, most)
        offset += kind == b"!"
        blocks = _count_gif_block(blocks, most)
    return offset + 1


def _count_gif_block(blocks: int, most: int) -> int:
    if blocks == most:
        raise DecodeError(f"a GIF with more than {most:,} blocks before its first image")
    return blocks + 1


def _check_bmp(content: bytes) -> None:
    header = int.from_bytes(content[14:18], "little")
    if header >= 40 and int.from_bytes(content[30:34], "little") in _BMP_RLE:  # Pillow decodes these in Python
        raise DecodeError("a BMP with run-length encoding; save it as PNG")


def _check_tiff(content: bytes, channels: int, pixel_limit: int) -> None:
    try:
        tags = tiff_tags(content)
    except (struct.error, OverflowError):  # OverflowError: an offset beyond any file
        raise DecodeError("damaged: the TIFF's tags are cut off") from None
    if any(count > MAX_SEGMENTS for tag in (_STRIPS, _TILES) for count, _ in tags[tag]):
        raise DecodeError(f"a TIFF with more than {MAX_SEGMENTS:,} strips or tiles")
    width, length = (max((value for _, value in tags[tag]), default=0) for tag in (_TILE_WIDTH, _TILE_LENGTH))
    if width * length > pixel_limit:
        raise DecodeError(f"tiles of {width} x {length} pixels, over the limit of {pixel_limit:,}")
    if sum(count for occurrences in tags.values() for count, _ in occurrences) > len(content):
        # many tags that share their bytes: Pillow would copy those for each
        raise DecodeError("damaged: the TIFF's tags hold more bytes than the file")
    # Pillow unpacks as much as there are pixels; tifffile, for what Pillow cannot read, unpacks everything
    if any(value != 1 for _, value in tags[_COMPRESSION]) and not (channels in (1, 3) and _pillow_reads(content)):
        raise DecodeError("a compressed TIFF with an unusual number of bands or data type; save it without compression")


def tiff_tags(content: bytes) -> dict[int, list[tuple[int, int]]]:
    """Return the tags of the first page: tag → (count, value) for each time it occurs.

    The value is that of a single whole number, else 0. Decoders do not agree on which occurrence of a tag holds.
    """
    order, big = "<" if content[:2] == b"II" else ">", 43 in content[2:4]
    (start,) = struct.unpack_from(f"{order}{'Q' if big else 'I'}", content, 8 if big else 4)
    (number,) = struct.unpack_from(f"{order}{'Q' if big else 'H'}", content, start)
    entry = struct.Struct(f"{order}HH{'Q8s' if big else 'I4s'}")
    if number > MAX_TIFF_TAGS:
        raise DecodeError(f"a TIFF with more than {MAX_TIFF_TAGS:,} tags")
    tags: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for index in range(number):
        tag, kind, count, value = entry.unpack_from(content, start + (8 if big else 2) + index * entry.size)
        size = {1: 1, 3: 2, 4: 4, 16: 8}.get(kind, 0)
        tags[tag].append((count, int.from_bytes(value[:size], "little" if order == "<" else "big")))
    return tags


def _pillow_reads(content: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(content), formats=["TIFF"]):
            return True
    except (UnidentifiedImageError, Image.DecompressionBombError):
        return False
