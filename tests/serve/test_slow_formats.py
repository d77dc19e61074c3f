"""Small files that once kept a decoder busy for seconds: each is refused or read at once, and never fails a request."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import threading

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.serve.asgi_client import run_requests
from tests.serve.servers import PATIENT, TIMEOUT, image_form, make_image, make_pool
from vitkit.errors import DecodeError
from vitkit.serve import body, decode_pool, pixel_count, upload
from vitkit.serve.decode_upload import decode_upload
from vitkit.serve.image_formats import (
    MAX_JPEG_FILL,
    MAX_JPEG_SEGMENTS,
    MAX_SEGMENTS,
    MAX_TIFF_TAGS,
    check_format,
)

GOOD = make_image(1)
JPEG, GIF = make_image(1, kind="JPEG"), make_image(1, kind="GIF")


def one_colour_webp(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (10, 200, 30)).save(file, "WEBP", lossless=True, quality=0, method=0)
    return file.getvalue() + bytes(600)  # so many pixels in fewer bytes are refused anyway


def run_length_bmp(runs: bytes, compression: int = 1) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, 8, 8, 1, 8 // compression, compression, len(runs), 0, 0, 0, 0)
    palette = bytes(4 * 2 ** (8 // compression))
    start = 14 + len(header) + len(palette)
    return b"BM" + struct.pack("<IHHI", start + len(runs), 0, 0, start) + header + palette + runs


def tiff_with_shared_bytes(tags: int) -> bytes:
    """Return a TIFF with private tags that all name the same bytes: Pillow would copy them for each."""
    rows = [(256, 4, 1, 4), (257, 4, 1, 4), *((50_000 + tag, 1, 4000, 8) for tag in range(tags))]
    content = b"II*\0" + struct.pack("<I", 4008) + bytes(4000) + struct.pack("<H", len(rows))
    return content + b"".join(struct.pack("<HHII", *row) for row in rows) + bytes(4)


ATTACKS = {
    "FF": b"\xff\xd8" + b"\xff" * 2_000_000,
    "RLE8": run_length_bmp(b"\0\2\0\0" * 100_000),
    "RLE4": run_length_bmp(b"\0\2\0\0" * 100_000, compression=2),
    "PPM": b"P6 400 400 254\n" + bytes(480_000),
    "WebP": one_colour_webp(1000),
    "gap": b"P5" + b" " * 40 + b"x",  # a pattern that can divide the gap in many ways would try all of them
}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (ATTACKS["FF"], "bytes between two segments"),
        (ATTACKS["RLE8"], "run-length"),
        (ATTACKS["RLE4"], "run-length"),
        (JPEG[:2] + b"\xff\0" * MAX_JPEG_FILL + JPEG[2:], "bytes between two segments"),
        (JPEG[:2] + b"\xff\xe1\0\x08Exif\0\0" * MAX_JPEG_SEGMENTS + JPEG[2:], "segments"),
        (GIF[:13] + GIF[13 : 13 + (3 << (GIF[10] & 7) + 1)] + b"!\xfe" + b"\1a" * (MAX_SEGMENTS + 1), "blocks"),
        (GIF[:13] + GIF[13 : 13 + (3 << (GIF[10] & 7) + 1)] + b"x" * (MAX_SEGMENTS + 1), "blocks"),
        (tiff_with_shared_bytes(50), "more bytes than the file"),
        (tiff_with_shared_bytes(MAX_TIFF_TAGS), "1,000 tags"),
    ],
    ids=["FF", "RLE8", "RLE4", "stuffing", "Exif", "comments", "junk", "tags", "many tags"],
)
def test_what_a_decoder_would_go_through_in_python_is_refused_before(content: bytes, reason: str):
    with pytest.raises(DecodeError, match=reason):
        check_format(content, channels=3, pixel_limit=10**6)


def test_a_few_fill_bytes_and_comments_are_no_attack():
    filled = JPEG[:2] + b"\xff" * 100 + JPEG[2:]
    np.testing.assert_array_equal(
        decode_upload(filled, channels=3, pixel_limit=10**6), decode_upload(JPEG, channels=3, pixel_limit=10**6)
    )
    palette = 13 + (3 << (GIF[10] & 7) + 1)
    commented = GIF[:palette] + b"!\xfe\5hello\0" + GIF[palette:]
    np.testing.assert_array_equal(
        decode_upload(commented, channels=3, pixel_limit=10**6), decode_upload(GIF, channels=3, pixel_limit=10**6)
    )


def test_each_attack_has_an_answer_or_an_error_of_its_own():
    async def requests(http: httpx.AsyncClient) -> httpx.Response:
        return await http.post("/v1/predict", files=image_form(*ATTACKS.values(), GOOD))

    response = run_requests(make_pool(), requests)
    errors = [row["error"] for row in response.json()["predictions"]]
    assert response.status_code == 200
    assert [error is None for error in errors] == [False, False, False, True, True, False, True]


def test_the_size_of_a_ppm_is_read_without_trying_every_way_to_divide_its_gaps():
    """In a process of its own: the pattern would keep the interpreter's lock, and the tests could not stop it."""
    code = f"from vitkit.serve.pixel_count import stated_pixels; print(stated_pixels({ATTACKS['gap']!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert done.stdout == "0\n"


def test_the_header_of_an_image_is_read_once_and_not_in_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    threads: list[int] = []

    def count(content: bytes) -> int:
        threads.append(threading.get_ident())
        return pixel_count.stated_pixels(content)

    for module in (upload, body, decode_pool):  # wherever it may be called from
        monkeypatch.setattr(module, "stated_pixels", count, raising=False)

    async def requests(http: httpx.AsyncClient) -> tuple[int, int]:
        response = await http.post("/v1/predict", files=image_form(GOOD, JPEG, GIF))
        return response.status_code, threading.get_ident()

    status, event_loop = run_requests(make_pool(), requests)
    assert (status, len(threads)) == (200, 3)
    assert event_loop not in threads


def test_sixty_four_images_of_one_colour_are_refused_by_their_headers():
    form = image_form(*[one_colour_webp(3000)] * 64)
    response = run_requests(make_pool(PATIENT), lambda http: http.post("/v1/predict", files=form))
    assert response.status_code == 413
    assert "576 megapixels together, over the limit of 500" in response.json()["error"]
