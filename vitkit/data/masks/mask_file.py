"""Decode a mask file as it is stored: a number for each pixel, or a colour; what they mean is not decided here."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.decode import PIXEL_LIMIT, apply_orientation, check_size, only_decode_errors, open_limited
from vitkit.errors import DecodeError

MASK_FORMATS = ("PNG", "TIFF", "BMP", "GIF", "PPM", "WEBP", "TGA", "JPEG")  # JPEG, so that a message can refuse it
WHITE = 255  # the number of a set pixel in files of one bit
_ORIENTATION = 0x0112


@dataclass(frozen=True, eq=False)
class StoredMask:
    """The pixels of a mask file: (height, width) numbers, or colours as 0xRRGGBB."""

    values: NDArray[np.uint16] | NDArray[np.uint32]
    is_colour: bool
    palette: NDArray[np.uint32] | None = None  # the colour of each number, of files with a palette
    lossy: bool = False  # JPEG: values near edges are not those that were saved

    @property
    def size(self) -> tuple[int, int]:
        height, width = self.values.shape
        return height, width

    def colours(self) -> NDArray[np.uint32]:
        """Return the mask as colours, which a palette gives to numbers."""
        if self.is_colour:
            return self.values.astype(np.uint32, copy=False)
        if self.palette is None:
            return self.values.astype(np.uint32) * 0x010101
        return self.palette[self.values]


def decode_mask(content: bytes) -> StoredMask:
    """Decode a mask or raise a DecodeError; colours of palettes stay numbers, and transparency is ignored."""
    with only_decode_errors():
        if not content:
            raise DecodeError("empty file")
        with open_limited(content, MASK_FORMATS) as image:
            check_size(image.size, PIXEL_LIMIT, len(content))
            image.load()
            orientation = image.getexif().get(_ORIENTATION, 1)
            stored = _values(image)
            values = np.ascontiguousarray(apply_orientation(stored.values, orientation))
            return StoredMask(values, stored.is_colour, stored.palette, lossy=image.format == "JPEG")


def _values(image: Image.Image) -> StoredMask:
    if image.mode == "P":
        return StoredMask(np.asarray(image).astype(np.uint16), False, _palette(image))
    if image.mode == "1":
        return StoredMask(np.asarray(image).astype(np.uint16) * np.uint16(WHITE), False)
    if image.mode in ("L", "LA"):
        return StoredMask(np.asarray(image.getchannel("L")).astype(np.uint16), False)
    if image.mode.startswith("I"):
        return StoredMask(_sixteen_bits(np.asarray(image)), False)
    if image.mode in ("RGB", "RGBA", "RGBX", "PA", "CMYK", "YCbCr"):
        return StoredMask(packed_colours(np.asarray(image.convert("RGB"))), True)
    raise DecodeError(f"its mode {image.mode} holds neither class numbers nor colours; save it as an 8-bit PNG")


def _sixteen_bits(values: NDArray[np.generic]) -> NDArray[np.uint16]:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > np.iinfo(np.uint16).max:
        raise DecodeError(f"its numbers are {low:,} to {high:,}; class numbers have at most 16 bits")
    return values.astype(np.uint16)


def _palette(image: Image.Image) -> NDArray[np.uint32]:
    colours = np.frombuffer(bytes(image.getpalette("RGB") or []), np.uint8).reshape(-1, 3)
    packed = np.zeros(256, np.uint32)
    packed[: len(colours)] = packed_colours(colours)
    return packed


def packed_colours(colours: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return (…, 3) colours as numbers 0xRRGGBB (…)."""
    red, green, blue = (colours[..., channel].astype(np.uint32) for channel in range(3))
    return np.asarray(red << 16 | green << 8 | blue, np.uint32)


def unpacked_colour(packed: int) -> tuple[int, int, int]:
    return packed >> 16 & 255, packed >> 8 & 255, packed & 255
