"""Images of more than 8 bits, or more bands than RGB: 16-bit scans, floats, .npy and multi-band TIFF.

16 bits are scaled by their range, 0 to 65535; floats must lie in 0 to 1. Both become float32 on the 0 to 255 scale of
8-bit images: Pillow's own conversion would clip a 16-bit scan to white.
"""

import io
import lzma
import math
import zlib
from typing import Any

import numpy as np

from vitkit.data.bounded_read import SMALL, check_pixels, load_npy, read_npy_header
from vitkit.data.decode_memory import decode_memory
from vitkit.errors import DecodeError, TooManyPixels

# TIFF's numbers of compressions. Of the others, decoders return as many bytes as the data say, however many.
_NONE, _LZW, _PACKBITS, _DEFLATED, _LZMA = (1,), (5,), (32773,), (8, 32946), (34925,)
_LZMA_MEMORY = 128 * 2**20  # bytes of its dictionary; `xz -9` needs 65 MB


def to_byte_scale(pixels: np.ndarray) -> np.ndarray:
    """Convert any numeric array (height, width[, bands]): uint8 stays, deeper ones become float32 on 0 to 255."""
    if pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise DecodeError(f"an array of shape {pixels.shape}; expected (height, width) or (height, width, bands)")
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype.newbyteorder("=") == np.uint16:
        return pixels.astype(np.float32) * np.float32(255 / 65535)
    if np.issubdtype(pixels.dtype, np.integer):
        # values of 0 to 255 would turn black if read as 16 bits, so nothing is guessed
        raise DecodeError(f"{pixels.dtype} values of unknown range; uint8 and uint16 are read")
    if np.issubdtype(pixels.dtype, np.floating):
        darkest, brightest = float(pixels.min()), float(pixels.max())
        if not (darkest >= 0 and brightest <= 1):  # also for NaN
            raise DecodeError(f"floats from {darkest:g} to {brightest:g}; floats must lie in 0 to 1")
        return (pixels * 255).astype(np.float32)
    raise DecodeError(f"values of type {pixels.dtype}")


def read_npy(content: bytes, channels: int, limit: int) -> np.ndarray:
    """Read a .npy file; its header is checked before its values are read, and pickled objects are never loaded."""
    header = read_npy_header(io.BytesIO(content))
    _check_size(header.shape, channels, limit, len(content))
    if header.dtype.hasobject:
        raise DecodeError("pickled objects, which are never loaded")
    return load_npy(content)


def read_tiff(content: bytes, channels: int, limit: int) -> np.ndarray:
    """Read all bands of a TIFF's first page, bands last."""
    try:
        import tifffile
    except ImportError:
        raise DecodeError('reading a multi-band TIFF needs: pip install "vitkit[formats]"') from None
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        page: Any = file.pages[0]
        _check_size(
            (page.imagelength, page.imagewidth, page.size // max(page.imagelength * page.imagewidth, 1)),
            channels,
            limit,
            len(content),
        )
        _refuse_bombs(page, content)
        pixels = page.asarray()
        return np.moveaxis(pixels, 0, -1) if page.axes == "SYX" else pixels  # S: bands


def _refuse_bombs(page: Any, content: bytes) -> None:
    """Refuse a TIFF strip or tile that decompresses to more than its size: tifffile would decompress all of it."""
    if page.compression not in (*_NONE, *_LZW, *_PACKBITS, *_DEFLATED, *_LZMA):
        name = getattr(page.compression, "name", page.compression)
        raise DecodeError(f"a multi-band TIFF compressed by {name}; deflate, LZMA, LZW, PackBits or none are read")
    expected = math.prod(page.chunks) * page.dtype.itemsize
    if expected > max(SMALL, page.nbytes):
        raise DecodeError(f"damaged: a strip or tile of {expected:,} bytes in an image of {page.nbytes:,}")
    for start, length in zip(page.dataoffsets, page.databytecounts, strict=True):
        if _unpacks_to_more(page.compression, content[start : start + length], expected):
            raise DecodeError(f"damaged: a strip or tile decompresses to more than its {expected:,} bytes")


def _unpacks_to_more(compression: int, packed: bytes, expected: int) -> bool:
    if compression in _DEFLATED:
        return len(zlib.decompressobj().decompress(packed, expected + 1)) > expected
    if compression in _LZMA:
        decompressor = lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
        # tifffile would decompress further streams after the first
        return len(decompressor.decompress(packed, expected + 1)) > expected or bool(decompressor.unused_data)
    # PackBits adds a byte to 128 at worst, LZW half as much again; what is longer than that holds too much
    return compression not in _NONE and len(packed) > 2 * expected + 128


def _check_size(shape: tuple[int, ...], channels: int, limit: int, encoded: int) -> None:
    """Check the size before anything is decompressed: many bands need as much memory as many pixels."""
    pixels, values = math.prod(shape[:2]), math.prod(shape)  # in Python's integers, which do not overflow
    if pixels > limit or values > limit * max(channels, 4):
        raise TooManyPixels(f"{' x '.join(map(str, shape))} values, over the limit of {limit:,} pixels")
    check_pixels(values, encoded)
    decode_memory.reserve(values)
