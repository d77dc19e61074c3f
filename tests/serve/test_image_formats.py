"""Pictures made to take far more than they show: what a server refuses before its decoder opens them."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from vitkit.data.decode import decode
from vitkit.errors import DecodeError
from vitkit.serve.image_formats import check, pixels_of


def saved(kind: str, *, size: tuple[int, int] = (40, 30), mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.effect_noise(size, 50).convert(mode).save(file, kind, **options)
    return file.getvalue()


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros((8, 8, 3), np.uint8))
    return file.getvalue()


def tiff(*entries: tuple[int, int, int, int], big: bool = False, order: str = "<", data: bytes = b"") -> bytes:
    """Of (tag, type, count, value); the data begins at 16."""
    words = [
        struct.pack(f"{order}HH{'Q' if big else 'I'}", tag, kind, count)
        + struct.pack(f"{order}{'H' if kind == 3 else 'I'}", value).ljust(8 if big else 4, b"\0")
        for tag, kind, count, value in entries
    ]
    start = b"II" if order == "<" else b"MM"
    head = start + (
        struct.pack(f"{order}HHHQ", 43, 8, 0, 16 + len(data))
        if big
        else struct.pack(f"{order}HIQ", 42, 16 + len(data), 0)
    )
    return head + data + struct.pack(f"{order}{'Q' if big else 'H'}", len(words)) + b"".join(words) + bytes(8)


def bands(compression: int, strip: bytes) -> bytes:
    """A TIFF of 4 x 4 pixels of one band of 64-bit floats, which Pillow cannot read and tifffile can."""
    return tiff(
        (256, 3, 1, 4),
        (257, 3, 1, 4),
        (258, 3, 1, 64),
        (259, 3, 1, compression),
        (262, 3, 1, 1),
        (273, 4, 1, 16),
        (277, 3, 1, 1),
        (278, 3, 1, 4),
        (279, 4, 1, len(strip)),
        (339, 3, 1, 3),
        data=strip,
    )


def refused(content: bytes, channels: int = 3) -> str:
    with pytest.raises(DecodeError) as told:
        check(content, channels=channels, pixel_limit=10**6)
    return str(told.value)


@pytest.mark.parametrize(
    "content",
    [
        saved("JPEG"),
        saved("JPEG", progressive=True),
        saved("JPEG", mode="CMYK"),
        saved("PNG"),
        saved("WEBP"),
        saved("GIF", mode="P"),
        saved("BMP"),
        saved("PPM"),
        saved("AVIF"),
        npy(),
        saved("TIFF"),
        saved("TIFF", compression="tiff_deflate"),
        saved("TIFF", compression="tiff_lzw", big_tiff=True),
        bands(1, bytes(128)),
        saved("PNG") + bytes(10**6),
        saved("JPEG") + b"\xff\xda\0\0" * 10**5,
    ],
    ids=[
        "jpeg",
        "progressive",
        "cmyk",
        "png",
        "webp",
        "gif",
        "bmp",
        "ppm",
        "avif",
        "npy",
        "tiff",
        "deflate",
        "big tiff",
        "floats",
        "png and more",
        "jpeg and a film",
    ],
)
def test_what_people_send_is_read(content: bytes):
    np.testing.assert_array_equal(pixels_of(content, channels=3, pixel_limit=10**6), decode(content, channels=3))


@pytest.mark.parametrize(
    "content",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        saved("ICO", mode="RGBA"),
        saved("ICNS", size=(64, 64)),
        saved("TGA"),
        saved("PCX"),
        saved("SGI"),
        b"P3 1 1 255 0 0 0",
        b"8BPS\0\1",
        b"RIFF\0\0\0\0WAVE",
        b"text",
    ],
)
def test_what_a_server_has_no_reason_to_open_is_refused_with_the_formats_it_reads(content: bytes):
    assert "JPEG, PNG, WebP" in refused(content)


@pytest.mark.parametrize(
    "content",
    [
        b"%!PSftypavif\n%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n",
        b"\0\0\1\0ftypavif" + struct.pack("<HHII", 1, 32, 99, 22) + saved("PNG"),  # the icon of many that it begins as
        b"\0\0\2\0ftypmif1" + bytes(99),
        b"BM" + saved("ICO", mode="RGBA"),
        b"GIF8" + saved("PNG"),
    ],
)
def test_a_file_that_begins_like_two_formats_is_opened_as_the_one_that_was_checked(
    content: bytes, monkeypatch: pytest.MonkeyPatch
):
    opened = []
    Image.init()
    for kind in ("EPS", "ICO", "CUR", "PNG"):
        monkeypatch.setitem(Image.OPEN, kind, (lambda *given, kind=kind: opened.append(kind), Image.OPEN[kind][1]))
    with pytest.raises(DecodeError):
        pixels_of(content, channels=3, pixel_limit=10**6)
    assert not opened


def test_a_jpeg_that_goes_over_its_pixels_again_and_again_is_refused():
    """Half a megabyte of these took minutes, and a decoder cannot be stopped."""
    content = saved("JPEG", progressive=True, mode="L")
    last, end = content.rfind(b"\xff\xda"), content.rfind(b"\xff\xd9")
    assert "scans" in refused(content[:end] + content[last:end] * 120 + content[end:])
    assert "pieces" in refused(content[:2] + b"\xff\xfe\0\2" * 10**5 + content[2:])


def test_thousands_of_empty_chunks_are_refused():
    content, empty = saved("PNG"), struct.pack(">I4sI", 0, b"teSt", zlib.crc32(b"teSt"))
    assert "pieces" in refused(content[:33] + empty * 10**5 + content[33:])


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("big", [False, True])
def test_tiffs_that_unpack_to_more_than_their_size_says_are_refused(order: str, big: bool):
    tiles = [(256, 3, 1, 10), (257, 3, 1, 10), (322, 4, 1, 20_000), (323, 4, 1, 20_000)]
    assert "tiles of 20000 x 20000" in refused(tiff(*tiles, order=order, big=big))
    assert "tiles" in refused(tiff(*tiles, (322, 4, 1, 16), (323, 3, 1, 16), order=order, big=big))  # said twice
    assert "pieces" in refused(tiff((273, 4, 10**6, 16), order=order, big=big))
    assert "compressed" in refused(tiff((259, 3, 1, 8), (277, 3, 1, 5), order=order, big=big))
    assert "cut off" in refused(tiff(*tiles, order=order, big=big)[:40])


def test_a_compressed_tiff_that_tifffile_would_unpack_without_bound_is_refused():
    """Three megabytes of it took six gigabytes."""
    packed = bands(8, zlib.compress(bytes(10**7)))
    assert "compressed" in refused(packed)
    assert "compressed" in refused(saved("TIFF", compression="tiff_deflate"), channels=5)
    with pytest.raises(DecodeError, match="unpacks to more"):  # what the decoder itself says to it
        decode(packed, channels=3)
