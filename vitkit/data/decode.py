"""The only image decoder: bytes → pixels, for training, evaluation, prediction and serving alike.

It returns (height, width, channels), upright, uint8; grey, array and TIFF sources deeper than 8 bits become float32 on
the same 0 to 255 scale, so that nothing is clipped or rounded away (of 16-bit colour PNGs, Pillow reads only 8 bits).
An image that cannot be decoded completely is an error with a reason.
"""

import io
import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError

from vitkit.data.bounded_read import check_pixels, read_npy_header
from vitkit.data.decode_memory import decode_memory
from vitkit.data.high_bit_depth import read_npy, read_tiff, to_byte_scale
from vitkit.data.pnm import BINARY_PNM, read_pnm, read_pnm_header
from vitkit.errors import DecodeError, TooManyPixels

PIXEL_LIMIT = 200_000_000
LONGEST_REASON = 200  # characters of a decoder's own message, which may quote the file
BACKGROUND = (255, 255, 255)  # behind transparent pixels: a white page
# a subset of what Pillow opens: no documents, some of which it passes to other programs, no videos, no data grids
FORMATS = tuple(
    """
    JPEG PNG GIF BMP DIB WEBP TIFF AVIF HEIF PPM JPEG2000 TGA PCX DCX PSD SGI ICO ICNS CUR DDS QOI SUN XBM XPM
    """.split()
)

_EXIF_ORIENTATION = 0x0112
_ON_ITS_SIDE = (5, 6, 7, 8)  # the orientations that exchange height and width
_TIFF_PHOTOMETRIC = 262
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the latter two are BigTIFF
_ICONS = (b"\0\0\1\0", b"\0\0\2\0")
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")
_GREY, _COLOUR = 1, 3
_PIXEL_COST = {"JPEG2000": 4}  # its decoder has 32 bits for each value; the others take the memory of one image or two
_open_lock = threading.Lock()


def _new_lock() -> None:
    """Give a forked process a lock of its own: a thread that is not there may have held the other one."""
    global _open_lock
    _open_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def decode(
    content: bytes | np.ndarray | Image.Image,
    *,
    channels: int = 3,
    background: tuple[int, int, int] = BACKGROUND,
    pixel_limit: int = PIXEL_LIMIT,
    formats: Collection[str] = FORMATS,
) -> np.ndarray:
    """Decode an image (encoded bytes, an array, or a Pillow image) → (height, width, channels), on 0 to 255.

    The result is uint8, or float32 where the source is deeper than 8 bits.

    channels    3 is RGB, 1 is grey; any other number must be that of a .npy or TIFF file
    background  the colour behind transparent pixels
    formats     Pillow's names of the formats that are accepted, besides .npy
    """
    with only_decode_errors():
        pixels = _decode(content, channels, background, pixel_limit, formats)
        return np.require(pixels, requirements=["C", "W"])  # Pillow's arrays are read-only, and torch warns about those


def decoded_size(content: bytes | np.ndarray) -> tuple[int, int]:
    """Return the height and width that `decode` would give, from the header alone."""
    if isinstance(content, np.ndarray):
        return content.shape[0], content.shape[1]
    with only_decode_errors():
        if content[:6] == b"\x93NUMPY":
            height, width, *_ = read_npy_header(io.BytesIO(content)).shape
            return height, width
        if content[:3] == b"\xff\xd8\xff":
            with suppress(ValueError):  # one that Pillow has to judge
                height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
                if colours not in ("CMYK", "YCCK"):  # which Pillow decodes
                    on_its_side = _jpeg_orientation(content) in _ON_ITS_SIDE
                    return (width, height) if on_its_side else (height, width)
        with open_limited(content, FORMATS, PIXEL_LIMIT) as image:
            sides = (image.height, image.width)
            return sides[::-1] if image.getexif().get(_EXIF_ORIENTATION, 1) in _ON_ITS_SIDE else sides


@contextmanager
def only_decode_errors() -> Iterator[None]:
    """Raise a DecodeError in place of whatever a third-party decoder raises: damaged bytes can raise anything there.

    Whoever gives bytes to Pillow, simplejpeg, numpy or tifffile does so in this context.
    """
    try:
        yield
    except DecodeError:
        raise
    except MemoryError:
        raise DecodeError("too large for this machine's memory") from None
    except Exception as error:
        raise DecodeError(_reason(error)) from error


@decode_memory.hold()
def _decode(
    content: bytes | np.ndarray | Image.Image,
    channels: int,
    background: tuple[int, int, int],
    limit: int,
    formats: Collection[str],
) -> np.ndarray:
    if isinstance(content, np.ndarray):
        return _fit_channels(to_byte_scale(content), channels)
    if isinstance(content, Image.Image):
        return _decode_pillow(content, channels, background, limit)
    if not content:
        raise DecodeError("empty file")
    if content[:3] == b"\xff\xd8\xff" and channels in (_GREY, _COLOUR):
        pixels = _decode_jpeg(content, channels, limit)
        if pixels is not None:
            return pixels
    if content[:6] == b"\x93NUMPY":
        return _fit_channels(to_byte_scale(read_npy(content, channels, limit)), channels)
    if content[:4] in _TIFF_STARTS and not _pillow_can(content, channels):
        return _fit_channels(to_byte_scale(read_tiff(content, channels, limit)), channels)
    if channels not in (_GREY, _COLOUR):
        raise DecodeError(f"the model takes {channels} channels, which only .npy and TIFF files can hold")
    if content[:2] in BINARY_PNM and "PPM" in formats:
        height, width, *_ = read_pnm_header(content)
        check_size((width, height), limit, len(content))
        decode_memory.reserve(width * height)
        values = read_pnm(content)
        if values.dtype == np.uint8:  # Pillow's own conversion to grey
            return _from_pillow(
                Image.fromarray(values.squeeze(2) if values.shape[2] == 1 else values), channels, background
            )
        return _fit_channels(to_byte_scale(values), channels)
    with open_limited(content, formats, limit) as image:
        check_size(image.size, limit, len(content))
        decode_memory.reserve(image.width * image.height * _PIXEL_COST.get(image.format or "", 1))
        return _decode_pillow(image, channels, background, limit)


def _decode_pillow(image: Image.Image, channels: int, background: tuple[int, int, int], limit: int) -> np.ndarray:
    if channels not in (_GREY, _COLOUR):
        raise DecodeError(f"the model takes {channels} channels, which a Pillow image cannot hold")
    check_size(image.size, limit)
    return _from_pillow(image, channels, background)


def _pillow_can(content: bytes, channels: int) -> bool:
    """Return whether Pillow reads this TIFF; it does not read more bands than RGB, or float colours."""
    if channels not in (_GREY, _COLOUR):
        return False
    try:
        with open_limited(content, ["TIFF"]):
            return True
    except UnidentifiedImageError:
        return False


def _decode_jpeg(content: bytes, channels: int, limit: int) -> np.ndarray | None:
    """Decode a JPEG fast; None leaves it to Pillow: CMYK, anything libjpeg warns about, damage that needs a reason."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return None
    check_size((width, height), limit, len(content))
    decode_memory.reserve(width * height)
    if colours in ("CMYK", "YCCK"):
        return None
    try:
        pixels = simplejpeg.decode_jpeg(content, "GRAY" if channels == _GREY else "RGB")
    except ValueError:
        return None
    return apply_orientation(pixels, _jpeg_orientation(content))


def decode_reduced_jpeg(content: bytes, side: int) -> tuple[np.ndarray, float, float] | None:
    """Decode a JPEG to grey (height, width) at one to eight eighths of its size, each side at least `side` if it can.

    Return also the height and width in that array that the image covers: a last row or column may be partial. None
    means that the complete decoder has to decide: not a JPEG, or one that libjpeg warns about.
    """
    if content[:3] != b"\xff\xd8\xff":
        return None
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(content)
        check_size((width, height), PIXEL_LIMIT, len(content))
        grey = simplejpeg.decode_jpeg(content, "GRAY", min_height=side, min_width=side)[:, :, 0]
    except ValueError:
        return None
    eighths = next(n for n in range(8, 0, -1) if (-(-height * n // 8), -(-width * n // 8)) == grey.shape)
    orientation = _jpeg_orientation(content)
    covered = (height * eighths / 8, width * eighths / 8)
    if orientation not in (0, 1):
        # turn the partial row or column to where it belongs: the image must begin at the first of them
        grey = apply_orientation(grey[: max(int(covered[0]), 1), : max(int(covered[1]), 1)], orientation)
        covered = (float(grey.shape[0]), float(grey.shape[1]))
    return np.ascontiguousarray(grey), *covered


def _jpeg_orientation(content: bytes) -> int:
    # Exif is in the first segments; Pillow parses it, which takes time, so only where there is one
    if b"Exif\0\0" not in content[:65536]:
        return 1
    with open_limited(content, ["JPEG"]) as image:
        return image.getexif().get(_EXIF_ORIENTATION, 1)


def apply_orientation(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Undo the rotation and mirroring of Exif orientations 1 to 8; any other number means none."""
    if orientation in _ON_ITS_SIDE:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def _from_pillow(image: Image.Image, channels: int, background: tuple[int, int, int]) -> np.ndarray:
    """Convert any mode to RGB or grey: the first frame of an animation, 16-bit by its range and never by convert()."""
    image.load()
    orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
    if image.mode.startswith("I") or image.mode == "F":
        return apply_orientation(_fit_channels(to_byte_scale(_high_bit_values(image)), channels), orientation)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        canvas = Image.new("RGBA", image.size, (*background, 255))
        image = Image.alpha_composite(canvas, image.convert("RGBA"))
    return apply_orientation(_as_array(image.convert("L" if channels == _GREY else "RGB")), orientation)


def _high_bit_values(image: Image.Image) -> np.ndarray:
    values = np.asarray(image)
    if image.mode == "I" and image.format in ("PNG", "PPM"):
        values = values.astype(np.uint16)  # these formats have at most 16 bits, in Pillow's 32-bit mode
    tags = getattr(image, "tag_v2", {})
    if tags.get(_TIFF_PHOTOMETRIC) == 0 and values.dtype.newbyteorder("=") == np.uint16:
        values = np.uint16(65535) - values  # white is zero; Pillow inverts 8 bits, but not 16
    return values


def _as_array(image: Image.Image) -> np.ndarray:
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _fit_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Convert (height, width[, bands]) → (height, width, channels), where that needs no guess."""
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    bands = pixels.shape[2]
    if bands == channels:
        return pixels
    if bands == _GREY:
        return np.repeat(pixels, channels, axis=2) if channels == _COLOUR else _refuse_bands(bands, channels)
    if bands == _COLOUR and channels == _GREY:
        grey = pixels @ np.array([0.299, 0.587, 0.114], dtype=np.float32)  # ITU-R 601, as Pillow's and libjpeg's
        return (grey if pixels.dtype == np.float32 else grey.round().astype(np.uint8))[:, :, None]
    return _refuse_bands(bands, channels)


def _refuse_bands(bands: int, channels: int) -> np.ndarray:
    raise DecodeError(f"the image has {bands} bands, but the model takes {channels}")


@contextmanager
def open_limited(content: bytes, formats: Collection[str], limit: int | None = None) -> Iterator[Image.Image]:
    """Open bytes with Pillow. Its warnings are left to the program: silencing them in Python is not thread-safe."""
    if content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS:
        _register_heif()
    Image.init()  # registers the formats, once
    # Pillow's own limit, about 179 million pixels, would apply before ours, which is checked before loading; only icons
    # are loaded while they are opened
    ours = limit if content[:4] in _ICONS else None
    with _open_lock:
        theirs, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, ours
        try:
            image = Image.open(io.BytesIO(content), formats=[name for name in formats if name in Image.OPEN])
        except Image.DecompressionBombError:
            raise TooManyPixels(f"an icon with more pixels than its header says, over the limit of {limit:,}") from None
        finally:
            Image.MAX_IMAGE_PIXELS = theirs
    with image:
        yield image


def _register_heif() -> None:
    try:
        import pi_heif
    except ImportError:
        raise DecodeError('reading HEIC needs: pip install "vitkit[formats]"') from None
    pi_heif.register_heif_opener()


def check_size(size: tuple[int, int], limit: int, encoded: int | None = None) -> None:
    width, height = size
    if width * height > limit:
        raise TooManyPixels(f"{width} x {height} is {width * height:,} pixels, over the limit of {limit:,}")
    if encoded is not None:
        check_pixels(width * height, encoded)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image in any supported format"
    text = next(iter(str(error).splitlines()), "")[:LONGEST_REASON] or type(error).__name__
    return text if "truncated" in text or "broken" in text else f"damaged: {text}"
