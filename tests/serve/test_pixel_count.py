"""The size in an image's header, compared with that of the decoder, for every format that the server accepts."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from vitkit.serve.pixel_count import stated_pixels

OPTIONS = [
    ("JPEG", {}),
    ("JPEG", {"progressive": True, "icc_profile": bytes(200_000)}),
    ("PNG", {}),
    ("GIF", {}),
    ("BMP", {}),
    ("PPM", {}),
    ("TIFF", {}),
    ("TIFF", {"big_tiff": True}),
    ("WEBP", {"lossless": True}),
    ("WEBP", {"quality": 50}),
    ("WEBP", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}),
    ("AVIF", {}),
]


def encoded(kind: str, size: tuple[int, int], **options: object) -> bytes:
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("Pillow without AVIF")
    file = io.BytesIO()
    Image.new("RGB", size, (200, 10, 30)).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize(("kind", "options"), OPTIONS)
@given(size=st.tuples(st.integers(1, 300), st.integers(1, 300)))
@settings(max_examples=10, deadline=None)
def test_the_stated_size_is_that_of_the_image(kind: str, options: dict[str, object], size: tuple[int, int]):
    assert stated_pixels(encoded(kind, size, **options)) == size[0] * size[1]


def test_the_stated_size_of_arrays_and_old_bitmaps():
    file = io.BytesIO()
    np.save(file, np.zeros((30, 40, 3), np.uint8))
    assert stated_pixels(file.getvalue()) == 1200
    assert stated_pixels(b"BM" + bytes(12) + b"\x0c\0\0\0" + b"\x10\0\x20\0" + bytes(8)) == 16 * 32


def test_the_size_of_a_jpeg_is_not_searched_for_beyond_its_first_scan():
    size = b"\xff\xc0\0\x0b\x08\0\x10\0\x20\1\1\x11\0"
    scan = b"\xff\xda\0\x02" + bytes(1000)
    assert stated_pixels(b"\xff\xd8" + size + scan) == 16 * 32
    assert stated_pixels(b"\xff\xd8" + scan + size) == 0


@given(st.binary(max_size=200), st.sampled_from([kind for kind, _ in OPTIONS]), st.integers(0, 60))
@settings(deadline=None)
def test_damaged_headers_state_some_number(junk: bytes, kind: str, kept: int):
    assert stated_pixels(encoded(kind, (9, 7))[:kept] + junk) >= 0
