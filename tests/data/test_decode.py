"""The decoder against Pillow, known arrays and hostile bytes."""

from __future__ import annotations

import io
import multiprocessing
import os
import resource
import sys
import tarfile
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image

from tests.conftest import FIXTURES
from tests.data.sample_images import bombs, encode, npy, oriented, png_with_header, scene
from vitkit.data import decode as decode_module
from vitkit.data.decode import decode
from vitkit.errors import DecodeError

LOSSLESS = ["PNG", "TIFF", "WEBP", "BMP", "GIF", "PPM", "TGA", "JPEG2000"]


@pytest.mark.parametrize("format", LOSSLESS)
def test_lossless_formats_decode_to_the_original_pixels(format: str):
    options = {"WEBP": {"lossless": True}, "JPEG2000": {"irreversible": False}}.get(format, {})
    pixels = scene() if format != "GIF" else np.asarray(Image.fromarray(scene()).quantize(64).convert("RGB"))
    source = pixels if format != "GIF" else Image.fromarray(scene()).quantize(64)
    np.testing.assert_array_equal(decode(encode(source, format, **options)), pixels)


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 95},
        {"progressive": True},
        {"subsampling": 0},
        {"quality": 5},
        {"optimize": True},
        {"restart_marker_rows": 1},
    ],
    ids=str,
)
def test_jpegs_decode_as_in_pillow(options: dict):
    content = encode(scene(), "JPEG", **options)
    np.testing.assert_array_equal(decode(content), np.asarray(Image.open(io.BytesIO(content))))


def test_real_photos_decode_as_in_pillow(shared: Path):
    with tarfile.open(shared / "data" / "pets160.tar") as archive:
        members = [member for member in archive if member.isfile()][::70]
        for member in members:
            content = archive.extractfile(member).read()
            theirs = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
            np.testing.assert_array_equal(decode(content), theirs)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_undone(format: str, orientation: int):
    options = {"lossless": True} if format == "WEBP" else {}
    np.testing.assert_array_equal(decode(oriented(format, orientation, **options)), scene())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_of_jpegs_is_undone_as_pillow_does(orientation: int):
    from PIL import ImageOps

    content = oriented("JPEG", orientation, quality=95)
    theirs = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
    np.testing.assert_array_equal(decode(content), theirs)
    assert np.abs(decode(content).astype(int) - scene()).mean() < 4  # and upright, up to JPEG's loss


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_means_none(orientation: int):
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(decode(encode(scene(), "PNG", exif=exif)), scene())


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_by_their_range(format: str):
    values = np.linspace(0, 65535, 24 * 40).reshape(24, 40).round().astype(np.uint16)
    pixels = decode(encode(values, format))
    assert pixels.dtype == np.float32
    np.testing.assert_allclose(pixels, np.repeat(values[:, :, None] / 257.0, 3, axis=2), atol=1e-3)


def test_sixteen_bits_where_white_is_zero_are_inverted():
    tifffile = pytest.importorskip("tifffile")
    for dtype in (np.uint8, np.uint16):
        file = io.BytesIO()
        tifffile.imwrite(file, np.full((4, 4), np.iinfo(dtype).max // 4, dtype), photometric="miniswhite")
        assert decode(file.getvalue()).mean() == pytest.approx(191, abs=1)


def test_colours_as_floats_are_read_from_tiffs():
    tifffile = pytest.importorskip("tifffile")
    values = np.linspace(0, 1, 4 * 5 * 3, dtype=np.float32).reshape(4, 5, 3)
    for options in ({}, {"bigtiff": True}):
        file = io.BytesIO()
        tifffile.imwrite(file, values, photometric="rgb", **options)
        np.testing.assert_allclose(decode(file.getvalue()), values * 255, atol=1e-3)


def test_transparent_pixels_are_blended_with_the_background():
    alpha = np.dstack([scene(), np.tile(np.linspace(0, 255, 40).astype(np.uint8), (24, 1))])
    for background in ((255, 255, 255), (10, 200, 30)):
        share = alpha[:, :, 3:] / 255.0
        expected = alpha[:, :, :3] * share + np.array(background) * (1 - share)
        assert np.abs(decode(encode(alpha, "PNG"), background=background) - expected).max() <= 1


def test_transparent_palettes_and_grey_with_alpha_are_blended_with_white():
    palette = Image.fromarray(scene()).quantize(16)
    clear = palette.getpixel((0, 0))
    pixels = decode(encode(palette, "PNG", transparency=clear))
    assert (pixels[np.asarray(palette) == clear] == 255).all()
    grey = np.dstack([scene()[:, :, 0], np.zeros((24, 40), np.uint8)])
    assert (decode(encode(Image.fromarray(grey, "LA"), "PNG")) == 255).all()


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "LAB"])
def test_other_modes_are_converted_as_in_pillow(mode: str):
    image = Image.fromarray(scene()).convert("RGB" if mode == "LAB" else mode)
    if mode == "LAB":
        image = Image.merge("LAB", [Image.fromarray(scene()[:, :, channel]) for channel in range(3)])
    content = encode(image, "TIFF")
    theirs = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    np.testing.assert_array_equal(decode(content), theirs)


def test_cmyk_jpegs_decode_as_in_pillow():
    content = encode(Image.fromarray(scene()).convert("CMYK"), "JPEG", quality=95)
    np.testing.assert_array_equal(decode(content), np.asarray(Image.open(io.BytesIO(content)).convert("RGB")))
    assert np.abs(decode(content).astype(int) - scene()).mean() < 8


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation_is_decoded(format: str):
    frames = [Image.fromarray(scene()).quantize(32).convert("RGB"), Image.new("RGB", (40, 24), "red")]
    options = {"lossless": True} if format == "WEBP" else {}
    content = encode(frames[0], format, save_all=True, append_images=frames[1:], **options)
    np.testing.assert_array_equal(decode(content), np.asarray(frames[0]))


def test_every_kind_of_source_decodes_to_grey():
    theirs = np.asarray(Image.fromarray(scene()).convert("L"))
    np.testing.assert_array_equal(decode(encode(scene(), "PNG"), channels=1)[:, :, 0], theirs)
    jpeg = encode(scene(), "JPEG", quality=95)
    ours = decode(jpeg, channels=1)[:, :, 0].astype(int)
    assert np.abs(ours - np.asarray(Image.open(io.BytesIO(jpeg)).convert("L"))).max() <= 2
    assert decode(npy(scene()), channels=1).shape == (24, 40, 1)


def test_bands_of_array_files_are_kept_or_rejected():
    bands = np.random.default_rng(0).integers(0, 65536, (6, 7, 5), dtype=np.uint16)
    np.testing.assert_allclose(decode(npy(bands), channels=5), bands / 257.0, rtol=1e-5)
    floats = bands / 65535.0
    np.testing.assert_allclose(decode(npy(floats), channels=5), floats * 255, rtol=1e-5)
    for wrong, message in [(3, "has 5 bands, but the model takes 3"), (4, "has 5 bands, but the model takes 4")]:
        with pytest.raises(DecodeError, match=message):
            decode(npy(bands), channels=wrong)
    with pytest.raises(DecodeError, match=r"only \.npy and TIFF files can hold"):
        decode(encode(scene(), "PNG"), channels=5)


def test_bands_of_tiffs_are_read():
    tifffile = pytest.importorskip("tifffile")
    bands = np.random.default_rng(0).integers(0, 256, (6, 7, 5), dtype=np.uint8)
    for planar, array in (("contig", bands), ("separate", np.moveaxis(bands, -1, 0))):
        file = io.BytesIO()
        tifffile.imwrite(file, array, planarconfig=planar, photometric="minisblack")
        np.testing.assert_array_equal(decode(file.getvalue(), channels=5), bands)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((4, 4), 9, np.int16), "int16 values of unknown range"),
        (np.full((4, 4), 7, np.int64), "int64"),
        (np.full((4, 4), 1.5, np.float32), "floats must lie in 0 to 1"),
        (np.full((4, 4), np.nan), "floats must lie"),
        (np.zeros((2, 3, 4, 5), np.uint8), "shape"),
        (np.zeros((0, 4), np.uint8), "shape"),
        (np.zeros((4, 4), np.complex64), "complex64"),
        (np.array(["a"]), "shape"),
    ],
)
def test_arrays_of_unknown_value_range_are_rejected(array: np.ndarray, message: str):
    with pytest.raises(DecodeError, match=message):
        decode(npy(array))


def test_heic_is_decoded_or_the_error_says_what_to_install():
    content = (FIXTURES / "scene.heic").read_bytes()
    try:
        import pi_heif  # noqa: F401
    except ImportError:
        with pytest.raises(DecodeError, match=r"vitkit\[formats\]"):
            decode(content)
    else:
        assert np.abs(decode(content).astype(int) - scene(64, 96)).mean() < 5
        with pytest.raises(DecodeError):
            decode(content[:200])


def test_heic_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    with pytest.raises(DecodeError, match=r"reading HEIC needs: pip install \"vitkit\[formats\]\""):
        decode((FIXTURES / "scene.heic").read_bytes())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty file"),
        (b"not an image at all", "not an image"),
        (encode(scene(), "JPEG")[:400], "truncated|Truncated"),
        (encode(scene(), "PNG")[:300], "truncated|broken|damaged"),
        (encode(scene(), "JPEG")[:-2], "truncated"),
        (b"\xff\xd8\xff\xe0", None),
        (png_with_header(40, 24), None),
        (encode(scene(), "GIF")[:200], None),
        (encode(scene(), "WEBP")[:100], None),
        (encode(scene(), "TIFF")[:500], None),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
    ],
    ids=range(11),
)
def test_incomplete_images_are_an_error_with_a_reason(content: bytes, message: str | None):
    with pytest.raises(DecodeError, match=message):
        decode(content)


def test_the_format_is_detected_from_the_content():
    """The decoder gets no file name: a PNG named .jpg is a PNG."""
    np.testing.assert_array_equal(decode(encode(scene(), "PNG")), scene())


@pytest.mark.parametrize("kind", bombs())
def test_a_decompression_bomb_is_rejected_before_memory_is_allocated(kind: str):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DecodeError, match="over the limit of 200,000,000"):
        decode(bombs()[kind])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB, of the 10 GB it claims


def test_many_bands_count_like_many_pixels():
    tifffile = pytest.importorskip("tifffile")
    file = io.BytesIO()
    tifffile.imwrite(
        file, np.zeros((100, 100, 50), np.uint8), compression="zlib", photometric="minisblack", planarconfig="contig"
    )
    assert decode(file.getvalue(), channels=50, pixel_limit=10_000).shape == (100, 100, 50)
    with pytest.raises(DecodeError, match="100 x 100 x 50 values, over the limit of 10,000 pixels"):
        decode(file.getvalue(), channels=3, pixel_limit=10_000)


def test_a_tiff_strip_that_decompresses_to_more_than_its_size_is_rejected():
    tifffile = pytest.importorskip("tifffile")
    for length, valid in ((100 * 100 * 5, True), (50_000_000, False)):
        file = io.BytesIO()
        with tifffile.TiffWriter(file) as writer:
            writer.write(
                iter([zlib.compress(bytes(length))]),
                shape=(100, 100, 5),
                dtype="uint8",
                rowsperstrip=100,
                compression="zlib",
                photometric="minisblack",
                planarconfig="contig",
            )
        if valid:
            assert decode(file.getvalue(), channels=5).shape == (100, 100, 5)
        else:
            with pytest.raises(DecodeError, match="decompresses to more than its 50,000 bytes"):
                decode(file.getvalue(), channels=5)


def test_our_pixel_limit_applies_instead_of_pillows():
    content = encode(Image.new("L", (20_000, 9_000)), "PNG")  # 180 million: past Pillow's own limit
    assert decode(content, channels=1).shape == (9_000, 20_000, 1)
    with pytest.raises(DecodeError, match="20000 x 9000 is 180,000,000 pixels, over the limit of 1,000,000"):
        decode(content, pixel_limit=1_000_000)
    assert Image.MAX_IMAGE_PIXELS is not None  # and Pillow's limit still stands for everybody else


def test_decoding_starts_no_other_program(monkeypatch: pytest.MonkeyPatch):
    """Pillow would run PostScript with Ghostscript, whatever the file is called."""
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args: started.append(args))
    with pytest.raises(DecodeError, match="not an image"):
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n")
    assert not started


def test_decoding_in_threads_does_not_change_the_warning_filters():
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(decode, [encode(scene(), "PNG")] * 400))
    assert list(warnings.filters) == before


def test_images_of_one_pixel_width_decode():
    for size in ((1, 1), (1, 50), (50, 1)):
        np.testing.assert_array_equal(decode(encode(scene(*size), "PNG")), scene(*size))


SEEDS = [
    encode(scene(), "JPEG"),
    oriented("JPEG", 6),
    encode(Image.fromarray(scene()).convert("CMYK"), "JPEG"),
    encode(scene(), "JPEG", progressive=True),
    encode(scene(), "PNG"),
    encode(Image.fromarray(scene()).quantize(16), "PNG"),
    encode(scene(), "GIF"),
    encode(scene(), "WEBP"),
    encode(scene(), "TIFF", compression="tiff_lzw"),
    encode(scene(), "BMP"),
    encode(scene(), "JPEG2000"),
    encode(np.zeros((9, 9), np.uint16), "TIFF"),
    npy(scene()),
    encode(scene(), "ICO", sizes=[(16, 16)]),
]


def mutate(seed: int) -> bytes:
    """Return a damaged image: bytes flipped, removed, doubled, or mixed with another format's."""
    rng = np.random.default_rng(seed)
    content = bytearray(SEEDS[rng.integers(len(SEEDS))])
    for _ in range(rng.integers(1, 8)):
        where = int(rng.integers(len(content))) if rng.random() < 0.5 else int(rng.integers(min(64, len(content))))
        kind = rng.integers(4)
        if kind == 0:
            content[where] = rng.integers(256)
        elif kind == 1:
            del content[where : where + int(rng.integers(1, 200))]
        elif kind == 2:
            content[where:where] = content[where : where + int(rng.integers(1, 200))]
        else:
            other = SEEDS[rng.integers(len(SEEDS))]
            content[where : where + 20] = other[where : where + 20]
        if not content:
            return b""
    return bytes(content)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns about damage that it can read past
@pytest.mark.parametrize("group", range(10))
def test_two_thousand_damaged_files_decode_or_raise_a_decode_error(group: int):
    for seed in range(group * 200, (group + 1) * 200):
        try:
            pixels = decode(mutate(seed), pixel_limit=10_000_000)
        except DecodeError as error:
            assert str(error)  # noqa: PT017
        else:
            assert pixels.ndim == 3
            assert pixels.shape[2] == 3
            assert pixels.dtype in (np.uint8, np.float32)


@given(st.binary(max_size=200))
@example(b"\xff\xd8\xff")
def test_arbitrary_bytes_raise_only_decode_errors(content: bytes):
    try:
        decode(content)
    except DecodeError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_decodes_although_a_thread_was_opening_an_image():
    content = encode(scene(8, 8), "PNG")
    process = multiprocessing.get_context("fork").Process(target=decode, args=(content,))
    with decode_module._open_lock:  # as a thread that the fork leaves behind
        process.start()
    process.join(60)
    exit_code = process.exitcode
    process.kill()
    assert exit_code == 0
