"""Images of more than 8 bits, or more bands than RGB: 16-bit scans, floats, .npy and multi-band TIFF.

16 bits are scaled by their range, 0 to 65535; floats must lie in 0 to 1. Both become float32 on the 0 to 255 scale of
8-bit images: Pillow's own conversion would clip a 16-bit scan to white.
"""

import io
import zlib
from typing import Any

import numpy as np

from vitkit.errors import DecodeError

_DEFLATED = (8, 32946)  # TIFF's numbers for it


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
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    _check_size(shape, channels, limit)
    if dtype.hasobject:
        raise DecodeError("pickled objects, which are never loaded")
    file.seek(0)
    return np.load(file, allow_pickle=False)


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
        )
        _refuse_bombs(page, content)
        pixels = page.asarray()
        return np.moveaxis(pixels, 0, -1) if pixels.ndim == 3 and page.planarconfig == 2 else pixels


def _refuse_bombs(page: Any, content: bytes) -> None:
    """Refuse a TIFF strip or tile that decompresses to more than its size: tifffile would decompress all of it."""
    if page.compression not in _DEFLATED:
        return
    expected = int(np.prod(page.chunks, dtype=np.int64)) * page.dtype.itemsize
    for start, length in zip(page.dataoffsets, page.databytecounts, strict=True):
        if len(zlib.decompressobj().decompress(content[start : start + length], expected + 1)) > expected:
            raise DecodeError(f"damaged: a strip or tile decompresses to more than its {expected:,} bytes")


def _check_size(shape: tuple[int, ...], channels: int, limit: int) -> None:
    """Check the size before anything is decompressed: many bands need as much memory as many pixels."""
    pixels, values = (int(np.prod(sides, dtype=np.int64)) for sides in (shape[:2], shape))
    if pixels > limit or values > limit * max(channels, 4):
        raise DecodeError(f"{' x '.join(map(str, shape))} values, over the limit of {limit:,} pixels")
