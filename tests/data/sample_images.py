"""Generated images for tests: unusual formats, Exif orientations and hostile files."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def scene(height: int = 24, width: int = 40) -> np.ndarray:
    """Return a smooth image without symmetry: a mirrored or rotated copy differs everywhere."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    red, green, blue = 255 * x / width, 255 * y / height, 127 + 120 * np.sin(x / 7 + y / 5)
    return np.stack([red, green, blue], axis=-1).round().astype(np.uint8)


def encode(pixels: np.ndarray | Image.Image, format: str, **options: Any) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def oriented(format: str, orientation: int, **options: Any) -> bytes:
    """Encode the scene as a camera stores it with this Exif orientation: upright after undoing it."""
    # where each orientation puts the upright image's pixels in the file, by Exif's definition
    stored = {
        1: lambda p: p,
        2: lambda p: p[:, ::-1],
        3: lambda p: p[::-1, ::-1],
        4: lambda p: p[::-1],
        5: lambda p: p.swapaxes(0, 1),
        6: lambda p: np.rot90(p, 1),
        7: lambda p: p[::-1, ::-1].swapaxes(0, 1),
        8: lambda p: np.rot90(p, -1),
    }[orientation](scene())
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(np.ascontiguousarray(stored), format, exif=exif, **options)


def png_with_header(width: int, height: int, body: bytes = b"") -> bytes:
    """Return a PNG whose header claims any size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def bombs() -> dict[str, bytes]:
    """Return decompression bombs: 60,000 x 60,000 pixels in a few bytes."""
    jpeg = bytearray(encode(scene(), "JPEG"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 60_000, 60_000)
    gif = bytearray(encode(Image.fromarray(scene()).quantize(), "GIF"))
    gif[6:10] = struct.pack("<HH", 60_000, 60_000)
    npy = io.BytesIO()
    np.lib.format.write_array_header_1_0(npy, {"descr": "|u1", "fortran_order": False, "shape": (60_000, 60_000, 3)})
    png = png_with_header(60_000, 60_000, zlib.compress(bytes(1000)))
    icon = struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(png), 22) + png  # 16 x 16, it says
    return {"png": png, "jpeg": bytes(jpeg), "gif": bytes(gif), "npy": npy.getvalue(), "icon": icon}


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
