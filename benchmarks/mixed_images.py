"""Images for a load test of the server, valid ones of every format, damaged and hostile ones, with their right answers.

The right answer is that of Classifier for the image alone, in this process.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_decoders import damaged, seed_images
from PIL import Image, features

import vitkit
from vitkit.data.decode import decode
from vitkit.errors import DecodeError

FORMATS: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 90},
    "PNG": {},
    "WEBP": {"quality": 90},
    "GIF": {},
    "BMP": {},
    "TIFF": {"compression": "tiff_lzw"},
    "AVIF": {"quality": 90, "speed": 10},
    "PPM": {},
}
SIZES = ((500, 400), (300, 480), (1600, 1200))
MAX_DAMAGED_PIXELS = 1_000_000


@dataclass(frozen=True)
class Sample:
    name: str
    content: bytes
    valid: bool  # the server must answer it; it may refuse others that Classifier reads
    probabilities: np.ndarray | None  # None: Classifier cannot read it
    embedding: np.ndarray | None


def make_samples(classifier: vitkit.Classifier, damaged_count: int) -> dict[str, list[Sample]]:
    """Return samples by kind: valid, damaged, hostile."""

    def sample(name: str, content: bytes, *, valid: bool) -> Sample:
        prediction = classifier(content)
        if prediction.error is not None:
            assert not valid, f"{name}: {prediction.error}"
            return Sample(name, content, valid, None, None)
        return Sample(name, content, valid, prediction.probabilities, classifier.embed([content])[0])

    return {
        "valid": [sample(name, content, valid=True) for name, content in valid_images()],
        "damaged": [sample(name, content, valid=False) for name, content in damaged_images(damaged_count)],
        "hostile": [sample(name, content, valid=False) for name, content in hostile_images()],
    }


def valid_images() -> Iterator[tuple[str, bytes]]:
    """Yield images of different colours, so that a mix-up of answers would show."""
    rng = np.random.default_rng(0)
    for name, options in FORMATS.items():
        if name in ("WEBP", "AVIF") and not features.check(name.lower()):
            continue
        for size in SIZES:
            yield f"{name} {size[0]} x {size[1]}", _encode(_blocks(rng, size), name, **options)
    file = io.BytesIO()
    np.save(file, np.asarray(_blocks(rng, (500, 400))))
    yield "npy", file.getvalue()
    heic = Path(__file__).parents[1] / "tests/fixtures/scene.heic"
    if heic.exists():
        yield "HEIC", heic.read_bytes()


def _blocks(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    blocks = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    return blocks.resize(size, Image.Resampling.BICUBIC)


def _encode(image: Image.Image, name: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def damaged_images(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield small files of every format with a few bytes changed; those of huge sizes are left to hostile_images."""
    seeds = seed_images()
    for number in range(count):
        name, content = damaged(number, seeds)
        try:
            decode(content, channels=3, pixel_limit=MAX_DAMAGED_PIXELS)
        except DecodeError as error:
            if "over the limit" in str(error):
                continue
        yield f"{name}, damaged ({number})", content


def hostile_images() -> Iterator[tuple[str, bytes]]:
    """Yield small files that take much time or memory, or once crashed a decoder."""
    if features.check("webp"):
        large = Image.new("RGB", (7000, 7000), (200, 30, 60))
        yield "WebP of one colour, 49 megapixels", _encode(large, "WEBP", lossless=True)
    yield "PNG that declares 3,600 megapixels", _png(60_000, 60_000, bytes(1_000_000))
    yield "PNG of 48 megapixels in a few bytes", _png(8000, 6000, bytes(6000 * (1 + 3 * 8000)))
    yield "JPEG of fill bytes", b"\xff\xd8" + b"\xff" * 1_000_000
    yield "BMP of empty runs", _bmp_of_empty_runs(500_000)
    yield "PPM in text", b"P3 300 300 255\n" + b"1 2 3 " * 90_000
    yield "TIFF with an impossible offset", b"II+\0\x08\0\0\0" + b"\xff" * 8
    yield "TIFF with an impossible strip", b"II*\0\x08\0\0\0\x01\0\x11\x01\x04\0\x01\0\0\0" + b"\xff" * 8
    yield "SVG", b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    yield "empty", b""


def _png(width: int, height: int, data: bytes) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")


def _bmp_of_empty_runs(count: int) -> bytes:
    palette, runs = bytes(4 * 256), b"\0\0" * count  # each ends a line that has no pixels
    head = struct.pack("<IiiHHIIiiII", 40, 64, 64, 1, 8, 1, len(runs), 0, 0, 256, 0)
    offset = 14 + len(head) + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(runs), 0, 0, offset) + head + palette + runs
