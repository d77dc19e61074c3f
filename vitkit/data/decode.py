"""The one decoder: bytes → pixels, for training, evaluation, prediction and serving alike.

What comes out is (height, width, channels), upright, uint8; grey, array and TIFF sources deeper than 8 bits come out as
float32 on the same 0 to 255 scale, so that nothing is clipped or rounded away (16-bit colour PNGs reach us as 8 bits,
which is all that Pillow reads of them). What cannot be decoded whole is an error with a reason.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import numpy as np
import simplejpeg
from PIL import Image, UnidentifiedImageError

from vitkit.data.deep import deepen, read_npy, read_tiff
from vitkit.errors import DecodeError

PIXEL_LIMIT = 200_000_000
BACKGROUND = (255, 255, 255)  # what shows through transparent pixels: a white page
# of what Pillow opens: no documents, some of which it would have run by other programs, no films, no data grids
PICTURES = (
    "JPEG",
    "PNG",
    "GIF",
    "BMP",
    "DIB",
    "WEBP",
    "TIFF",
    "AVIF",
    "HEIF",
    "PPM",
    "JPEG2000",
    "TGA",
    "PCX",
    "DCX",
    "PSD",
    "SGI",
    "ICO",
    "ICNS",
    "CUR",
    "DDS",
    "QOI",
    "SUN",
    "XBM",
    "XPM",
)

_EXIF_ORIENTATION = 0x0112
_TIFF_PHOTOMETRIC = 262
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the latter two are BigTIFF
_ICONS = (b"\0\0\1\0", b"\0\0\2\0")
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")
_GREY, _COLOUR = 1, 3
_open_lock = threading.Lock()


def decode(
    content: bytes | np.ndarray | Image.Image,
    *,
    channels: int = 3,
    background: tuple[int, int, int] = BACKGROUND,
    pixel_limit: int = PIXEL_LIMIT,
    formats: Collection[str] = PICTURES,
) -> np.ndarray:
    """A picture as encoded bytes, as pixels of an array file or as Pillow opened it → (height, width, channels),
    uint8 or float32 on 0 to 255.

    channels    3 is RGB, 1 is grey, any other number must be what a .npy or TIFF file holds
    background  the colour under transparent pixels
    formats     of Pillow's, those that bytes may be in besides .npy
    """
    try:
        pixels = _decode(content, channels, background, pixel_limit, formats)
    except DecodeError:
        raise
    except MemoryError:
        raise DecodeError("too large for this machine's memory") from None
    except Exception as error:  # damaged bytes raise whatever a parser hits first
        raise DecodeError(_reason(error)) from error
    return np.require(pixels, requirements=["C", "W"])  # Pillow's arrays are read-only, which torch warns of


def _decode(
    content: bytes | np.ndarray | Image.Image,
    channels: int,
    background: tuple[int, int, int],
    limit: int,
    formats: Collection[str],
) -> np.ndarray:
    if isinstance(content, np.ndarray):
        return _fit_channels(deepen(content), channels)
    if isinstance(content, Image.Image):
        return _look_at(content, channels, background, limit)
    if not content:
        raise DecodeError("empty file")
    if content[:3] == b"\xff\xd8\xff" and channels in (_GREY, _COLOUR):
        pixels = _decode_jpeg(content, channels, limit)
        if pixels is not None:
            return pixels
    if content[:6] == b"\x93NUMPY":
        return _fit_channels(deepen(read_npy(content, channels, limit)), channels)
    if content[:4] in _TIFF_STARTS and not _pillow_can(content, channels):
        return _fit_channels(deepen(read_tiff(content, channels, limit)), channels)
    if channels not in (_GREY, _COLOUR):
        raise DecodeError(f"{channels} channels are wanted, which only .npy and TIFF files can hold")
    with _open(content, formats, limit) as picture:
        return _look_at(picture, channels, background, limit)


def _look_at(picture: Image.Image, channels: int, background: tuple[int, int, int], limit: int) -> np.ndarray:
    if channels not in (_GREY, _COLOUR):
        raise DecodeError(f"{channels} channels are wanted, which an image of Pillow's cannot hold")
    _check_size(picture.size, limit)
    return _from_pillow(picture, channels, background)


def _pillow_can(content: bytes, channels: int) -> bool:
    """Of TIFFs: not more bands than RGB, nor colours as floats."""
    if channels not in (_GREY, _COLOUR):
        return False
    try:
        with _open(content, ["TIFF"]):
            return True
    except UnidentifiedImageError:
        return False


def _decode_jpeg(content: bytes, channels: int, limit: int) -> np.ndarray | None:
    """The fast path; None hands over to Pillow: CMYK, oddities that libjpeg warns of, damage to name properly."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return None
    _check_size((width, height), limit)
    if colours in ("CMYK", "YCCK"):
        return None
    try:
        pixels = simplejpeg.decode_jpeg(content, "GRAY" if channels == _GREY else "RGB")
    except ValueError:
        return None
    return turn_upright(pixels, _jpeg_orientation(content))


def _jpeg_orientation(content: bytes) -> int:
    # Exif stands in the first segments; Pillow parses it, which is only worth its time where there is one
    if b"Exif\0\0" not in content[:65536]:
        return 1
    with _open(content, ["JPEG"]) as picture:
        return picture.getexif().get(_EXIF_ORIENTATION, 1)


def turn_upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Undo the rotation and mirroring that Exif's orientation 1 to 8 describes; anything else means none."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def _from_pillow(picture: Image.Image, channels: int, background: tuple[int, int, int]) -> np.ndarray:
    """Any mode → RGB or grey; the first frame of an animation; 16-bit by its range, never through convert()."""
    picture.load()
    orientation = picture.getexif().get(_EXIF_ORIENTATION, 1)
    if picture.mode.startswith("I") or picture.mode == "F":
        return turn_upright(_fit_channels(deepen(_deep_values(picture)), channels), orientation)
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        over = Image.new("RGBA", picture.size, (*background, 255))
        picture = Image.alpha_composite(over, picture.convert("RGBA"))
    return turn_upright(_as_array(picture.convert("L" if channels == _GREY else "RGB")), orientation)


def _deep_values(picture: Image.Image) -> np.ndarray:
    values = np.asarray(picture)
    if picture.mode == "I" and picture.format in ("PNG", "PPM"):
        values = values.astype(np.uint16)  # formats that have no more than 16 bits, in Pillow's 32-bit mode
    tags = getattr(picture, "tag_v2", {})
    if tags.get(_TIFF_PHOTOMETRIC) == 0 and values.dtype.newbyteorder("=") == np.uint16:
        values = np.uint16(65535) - values  # white is zero; Pillow turns 8 bits round, but not 16
    return values


def _as_array(picture: Image.Image) -> np.ndarray:
    pixels = np.asarray(picture)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _fit_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """(height, width[, bands]) → (height, width, channels), where that takes no guess."""
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
    raise DecodeError(f"{bands} bands, where {channels} are wanted")


@contextmanager
def _open(content: bytes, formats: Collection[str], limit: int | None = None) -> Iterator[Image.Image]:
    """Oddities that Pillow copes with are warnings, the program's to show or not: Python's means to silence them are no
    thread's own."""
    if content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS:
        _register_heif()
    Image.init()  # once; it then knows which of the formats it has
    # Pillow's own limit, about 179 million pixels, would come before ours, which is checked before loading; an icon,
    # alone of all, is loaded while it is opened
    ours = limit if content[:4] in _ICONS else None
    with _open_lock:
        theirs, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, ours
        try:
            picture = Image.open(io.BytesIO(content), formats=[name for name in formats if name in Image.OPEN])
        except Image.DecompressionBombError:
            raise DecodeError(f"an icon that holds more pixels than it says, over the limit of {limit:,}") from None
        finally:
            Image.MAX_IMAGE_PIXELS = theirs
    with picture:
        yield picture


def _register_heif() -> None:
    try:
        import pi_heif
    except ImportError:
        raise DecodeError('HEIC, which needs: pip install "vitkit[formats]"') from None
    pi_heif.register_heif_opener()


def _check_size(size: tuple[int, int], limit: int) -> None:
    width, height = size
    if width * height > limit:
        raise DecodeError(f"{width} x {height} is {width * height:,} pixels, over the limit of {limit:,}")


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not a picture in any format that can be read"
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    return text if "truncated" in text or "broken" in text else f"damaged: {text}"
