"""Pixels deeper than 8 bits, or of more bands than a picture has: 16-bit scans, floats, .npy and multi-band TIFF.

16 bits are scaled by their range, 0 to 65535; floats must lie in 0 to 1. Both come out as float32 on the 0 to 255 scale
of ordinary pictures: Pillow's own conversion would clip a 16-bit scan to white.
"""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np

from vitkit.errors import DecodeError

_DEFLATED = (8, 32946)  # as TIFFs number it


def deepen(pixels: np.ndarray) -> np.ndarray:
    """Any numeric array (height, width[, bands]) → uint8 as it is, deeper as float32 on 0 to 255."""
    if pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise DecodeError(f"an array of shape {pixels.shape}; (height, width) or (height, width, bands) is wanted")
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8) * np.uint8(255)
    if pixels.dtype.newbyteorder("=") == np.uint16:
        return pixels.astype(np.float32) * np.float32(255 / 65535)
    if np.issubdtype(pixels.dtype, np.integer):
        # values of 0 to 255 would come out black if they were taken for 16 bits, so nothing is guessed
        raise DecodeError(f"{pixels.dtype} values, whose range nothing tells; uint8 and uint16 are read")
    if np.issubdtype(pixels.dtype, np.floating):
        darkest, brightest = float(pixels.min()), float(pixels.max())
        if not (darkest >= 0 and brightest <= 1):  # catches NaN too
            raise DecodeError(f"floats from {darkest:g} to {brightest:g}; floats must lie in 0 to 1")
        return (pixels * 255).astype(np.float32)
    raise DecodeError(f"values of type {pixels.dtype}")


def read_npy(content: bytes, channels: int, limit: int) -> np.ndarray:
    """A .npy file; its header is checked before its values are read, and pickled objects never are."""
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
    """All bands of a TIFF's first page, bands last."""
    try:
        import tifffile
    except ImportError:
        raise DecodeError('a multi-band TIFF, which needs: pip install "vitkit[formats]"') from None
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
    """A piece of a TIFF must not unpack to more than its place in the picture: tifffile would unpack all of it."""
    if page.compression not in _DEFLATED:
        return
    room = int(np.prod(page.chunks, dtype=np.int64)) * page.dtype.itemsize
    for start, length in zip(page.dataoffsets, page.databytecounts, strict=True):
        if len(zlib.decompressobj().decompress(content[start : start + length], room + 1)) > room:
            raise DecodeError(f"damaged: a piece that unpacks to more than its {room:,} bytes")


def _check_size(shape: tuple[int, ...], channels: int, limit: int) -> None:
    """Before anything is unpacked: many bands make a small file as large as many pixels do."""
    pixels, values = (int(np.prod(part, dtype=np.int64)) for part in (shape[:2], shape))
    if pixels > limit or values > limit * max(channels, 4):
        raise DecodeError(f"{' x '.join(map(str, shape))} values, over the limit of {limit:,} pixels")
