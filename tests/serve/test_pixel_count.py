"""The size in an image's header, compared with that of the decoder, for every format that the server accepts."""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

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


def test_a_gif_whose_first_frame_exceeds_its_canvas_has_the_size_that_pillow_gives_it():
    content = bytearray(encoded("GIF", (300, 200)))
    for canvas in ((0, 0), (1, 1), (400, 10), (10, 500)):
        content[6:10] = struct.pack("<HH", *canvas)
        with Image.open(io.BytesIO(content)) as image:
            assert stated_pixels(bytes(content)) == image.width * image.height > 300 * 199


def test_the_size_of_a_jpeg_is_not_searched_for_beyond_its_first_scan():
    size = b"\xff\xc0\0\x0b\x08\0\x10\0\x20\1\1\x11\0"
    scan = b"\xff\xda\0\x02" + bytes(1000)
    assert stated_pixels(b"\xff\xd8" + size + scan) == 16 * 32
    assert stated_pixels(b"\xff\xd8" + scan + size) == 0


MOST_LINES = 20_000  # of Python, for one header: a few for each of a thousand tags or segments


def lines_executed(content: bytes) -> int:
    """Return how many lines of Python it takes to read the size: work that no machine makes smaller or larger."""
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        stated_pixels(content)
    finally:
        sys.settrace(before)
    return lines


def tiff(tags: int, *, order: str = "<", big: bool = False) -> bytes:
    mark, number, row = (b"+\0", "Q", "HHQQ") if big else (b"*\0", "H", "HHII")
    start = (b"II" if order == "<" else b"MM") + (mark if order == "<" else mark[::-1])
    start += struct.pack(f"{order}HHQ", 8, 0, 16) if big else struct.pack(f"{order}I", 8)
    return start + struct.pack(f"{order}{number}", tags) + struct.pack(f"{order}{row}", 256, 4, 1, 8) * tags


@given(tags=st.sampled_from([0, 1, 999, 1000, 1001, 50_000, 65_535]), order=st.sampled_from("<>"), big=st.booleans())
@settings(deadline=None)
def test_many_tags_take_no_more_work_than_a_thousand(tags: int, order: str, big: bool):
    assert lines_executed(tiff(tags, order=order, big=big)) < MOST_LINES


@given(
    segments=st.lists(st.sampled_from([0xC4, 0xDA, 0xDB, 0xE1, 0xFE]), min_size=1, max_size=4),
    repeats=st.sampled_from([1, 1000, 20_000]),
    fill=st.integers(0, 3),
)
@settings(deadline=None)
def test_a_jpeg_that_never_states_its_size_takes_no_more_work_than_a_thousand_segments(
    segments: list[int], repeats: int, fill: int
):
    content = b"".join(b"\xff" * fill + bytes([0xFF, marker]) + b"\0\2" for marker in segments) * repeats
    assert lines_executed(b"\xff\xd8" + content) < MOST_LINES
    assert stated_pixels(b"\xff\xd8" + content) == 0


@given(
    gaps=st.lists(st.text(" \t\n\r\v\f", min_size=1, max_size=60), min_size=3, max_size=3),
    comment=st.sampled_from(["", "#\n", "# 3 4\n", "#" * 4000 + "\n"]),
    end=st.sampled_from(["\n", "x", "", "#"]),
)
def test_long_gaps_and_comments_of_a_ppm_are_skipped_and_what_does_not_end_states_nothing(
    gaps: list[str], comment: str, end: str
):
    content = f"P6{gaps[0]}{comment}9{gaps[1]}{comment}7{gaps[2]}255{end}".encode()
    assert stated_pixels(content) == (63 if end == "\n" else 0)


@given(st.binary(max_size=200), st.sampled_from([kind for kind, _ in OPTIONS]), st.integers(0, 60))
@settings(deadline=None)
def test_damaged_headers_raise_nothing_and_take_little_work(junk: bytes, kind: str, kept: int):
    assert lines_executed(encoded(kind, (9, 7))[:kept] + junk) < MOST_LINES
