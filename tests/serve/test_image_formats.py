"""The allow-list of formats and the checks against decompression bombs, which run before the decoder."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from vitkit.data.decode import decode
from vitkit.errors import DecodeError
from vitkit.serve.decode_upload import decode_upload
from vitkit.serve.image_formats import check_format


def encode(kind: str, *, size: tuple[int, int] = (40, 30), mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.effect_noise(size, 50).convert(mode).save(file, kind, **options)
    return file.getvalue()


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros((8, 8, 3), np.uint8))
    return file.getvalue()


def tiff(*entries: tuple[int, int, int, int], big: bool = False, order: str = "<", data: bytes = b"") -> bytes:
    """Return a TIFF with these tags (tag, type, count, value) and its data at offset 16."""
    entries_bytes = [
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
    return (
        head
        + data
        + struct.pack(f"{order}{'Q' if big else 'H'}", len(entries_bytes))
        + b"".join(entries_bytes)
        + bytes(8)
    )


def float64_tiff(compression: int, strip: bytes) -> bytes:
    """Return a TIFF of 4 x 4 pixels in one band of 64-bit floats, which tifffile can read and Pillow cannot."""
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


def error_of(content: bytes, channels: int = 3) -> str:
    with pytest.raises(DecodeError) as raised:
        check_format(content, channels=channels, pixel_limit=10**6)
    return str(raised.value)


@pytest.mark.parametrize(
    "content",
    [
        encode("JPEG"),
        encode("JPEG", progressive=True),
        encode("JPEG", mode="CMYK"),
        encode("PNG"),
        encode("WEBP"),
        encode("GIF", mode="P"),
        encode("BMP"),
        encode("PPM"),
        encode("AVIF"),
        npy(),
        encode("TIFF"),
        encode("TIFF", compression="tiff_deflate"),
        encode("TIFF", compression="tiff_lzw", big_tiff=True),
        float64_tiff(1, bytes(128)),
        encode("PNG") + bytes(10**6),
        encode("JPEG") + b"\xff\xda\0\0" * 10**5,
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
def test_the_usual_formats_are_decoded(content: bytes):
    np.testing.assert_array_equal(decode_upload(content, channels=3, pixel_limit=10**6), decode(content, channels=3))


@pytest.mark.parametrize(
    "content",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        encode("ICO", mode="RGBA"),
        encode("ICNS", size=(64, 64)),
        encode("TGA"),
        encode("PCX"),
        encode("SGI"),
        b"P3 1 1 255 0 0 0",
        b"8BPS\0\1",
        b"RIFF\0\0\0\0WAVE",
        b"text",
    ],
)
def test_other_formats_are_rejected_with_the_list_of_accepted_ones(content: bytes):
    assert "JPEG, PNG, WebP" in error_of(content)


@pytest.mark.parametrize(
    "content",
    [
        b"%!PSftypavif\n%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n",
        b"\0\0\1\0ftypavif"
        + struct.pack("<HHII", 1, 32, 99, 22)
        + encode("PNG"),  # an icon file, with the signature of AVIF
        b"\0\0\2\0ftypmif1" + bytes(99),
        b"BM" + encode("ICO", mode="RGBA"),
        b"GIF8" + encode("PNG"),
    ],
)
def test_a_file_that_matches_two_formats_is_opened_as_the_one_that_was_checked(
    content: bytes, monkeypatch: pytest.MonkeyPatch
):
    opened = []
    Image.init()
    for kind in ("EPS", "ICO", "CUR", "PNG"):
        monkeypatch.setitem(Image.OPEN, kind, (lambda *arguments, kind=kind: opened.append(kind), Image.OPEN[kind][1]))
    with pytest.raises(DecodeError):
        decode_upload(content, channels=3, pixel_limit=10**6)
    assert not opened


def test_a_jpeg_with_too_many_scans_or_segments_is_rejected():
    """Half a megabyte of scans took minutes to decode, and a decoder cannot be stopped."""
    content = encode("JPEG", progressive=True, mode="L")
    last, end = content.rfind(b"\xff\xda"), content.rfind(b"\xff\xd9")
    assert "scans" in error_of(content[:end] + content[last:end] * 120 + content[end:])
    assert "segments" in error_of(content[:2] + b"\xff\xfe\0\2" * 10**5 + content[2:])


def test_a_png_with_too_many_chunks_is_rejected():
    content, empty = encode("PNG"), struct.pack(">I4sI", 0, b"teSt", zlib.crc32(b"teSt"))
    assert "chunks" in error_of(content[:33] + empty * 10**5 + content[33:])


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # of Pillow, on a TIFF that is cut off
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("big", [False, True])
def test_a_tiff_that_unpacks_to_more_than_it_declares_is_rejected(order: str, big: bool):
    tiles = [(256, 3, 1, 10), (257, 3, 1, 10), (322, 4, 1, 20_000), (323, 4, 1, 20_000)]
    assert "tiles of 20000 x 20000" in error_of(tiff(*tiles, order=order, big=big))
    assert "tiles" in error_of(
        tiff(*tiles, (322, 4, 1, 16), (323, 3, 1, 16), order=order, big=big)
    )  # a tag that occurs twice
    assert "strips" in error_of(tiff((273, 4, 10**6, 16), order=order, big=big))
    assert "compressed" in error_of(tiff((259, 3, 1, 8), (277, 3, 1, 5), order=order, big=big))
    assert "cut off" in error_of(tiff(*tiles, order=order, big=big)[:40])


def test_a_compressed_tiff_that_tifffile_would_unpack_without_a_limit_is_rejected():
    """Three megabytes of it unpacked to six gigabytes."""
    packed = float64_tiff(8, zlib.compress(bytes(10**7)))
    assert "compressed" in error_of(packed)
    assert "compressed" in error_of(encode("TIFF", compression="tiff_deflate"), channels=5)
    with pytest.raises(DecodeError, match="to more than its"):  # the decoder's own check
        decode(packed, channels=3)
