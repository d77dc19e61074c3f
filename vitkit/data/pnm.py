"""Binary PGM and PPM files of any depth, read at once; the values are Pillow's, which reads them pixel by pixel.

Pillow has a decoder in Python for every depth but 8 bits, and for 30 MB it takes half a minute.
"""

import re

import numpy as np

from vitkit.errors import DecodeError

_GAP = rb"(?:[ \t\n\v\f\r]|#[^\r\n]{0,4096}[\r\n]){0,64}"  # spaces and comments, which end with their line
_NUMBER = rb"(\d{1,10})[ \t\n\v\f\r]"
_HEADER = re.compile(rb"(P[56])[ \t\n\v\f\r]" + 3 * (_GAP + _NUMBER))
BINARY_PNM = (b"P5", b"P6")


def read_pnm_header(content: bytes) -> tuple[int, int, int, int, int]:
    """Return height, width, bands, the largest value and where the values begin."""
    header = _HEADER.match(content)
    if header is None:
        raise DecodeError("damaged: the header of the PGM or PPM file")
    width, height, largest = int(header[2]), int(header[3]), int(header[4])
    if not (width and height):
        raise DecodeError(f"damaged: an image of {width} x {height} pixels")
    if not 0 < largest < 65536:
        raise DecodeError(f"damaged: a PGM or PPM file whose largest value is {largest}")
    return height, width, 3 if header[1] == b"P6" else 1, largest, header.end()


def read_pnm(content: bytes) -> np.ndarray:
    """Read a P5 or P6 file → (height, width, bands), uint8; grey of more than 8 bits is scaled to all of uint16."""
    height, width, bands, largest, start = read_pnm_header(content)
    dtype = np.dtype(np.uint8 if largest < 256 else ">u2")
    count = height * width * bands
    if len(content) - start < count * dtype.itemsize:
        raise DecodeError(f"image file is truncated: {len(content) - start:,} of {count * dtype.itemsize:,} bytes")
    values = np.frombuffer(content, dtype, count, start).reshape(height, width, bands)
    white = 65535 if bands == 1 and largest > 255 else 255
    if largest == white:
        return values.astype(values.dtype.newbyteorder("="))
    # a table, because there are fewer values than pixels; ties go to the even number, as in Python's round
    table = np.minimum(np.rint(np.arange(256**dtype.itemsize) / largest * white), white)
    return table.astype(np.uint16 if white == 65535 else np.uint8)[values]
