"""COCO's run-length encoding of a mask: runs of 0 and 1 in turn, column by column; as numbers, or compressed to text.

Compressed counts have 5 bits of a number in each character, from the low ones, and from the fourth run on the
difference from the run before the last. The format is that of pycocotools, whose own C code is not given files that
nobody has checked: it does not check them either.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from vitkit.data.decode import PIXEL_LIMIT
from vitkit.errors import DecodeError

_FIRST = 48  # the character of zero
_MORE, _SIGN, _BITS = 0x20, 0x10, 5
_LONGEST = 7  # characters of a count: 35 bits


class CocoRLE(TypedDict):
    size: list[int]  # height, width
    counts: str


def encode_rle(mask: NDArray[np.bool_]) -> CocoRLE:
    """Return the mask (height, width) as COCO's compressed RLE, as `pycocotools.mask.encode` does, in text."""
    flat = np.asarray(mask, bool).ravel(order="F")
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs = np.diff(np.concatenate([[0], changes, [len(flat)]]))
    counts = [*([0] if len(flat) and flat[0] else []), *runs.tolist()]
    return {"size": list(mask.shape), "counts": _compress(counts)}


def decode_rle(rle: Mapping[str, Any], size: tuple[int, int] | None = None) -> NDArray[np.bool_]:
    """Return the mask (height, width) of compressed or uncompressed RLE; a DecodeError says what is malformed.

    `size` is that of its image, which it should have.
    """
    height, width = _size(rle)
    if size is not None and (height, width) != size:
        raise DecodeError(f"its RLE is {height} x {width} (height x width), its image {size[0]} x {size[1]}")
    if height * width > PIXEL_LIMIT:
        raise DecodeError(f"its RLE is {height} x {width}, over the limit of {PIXEL_LIMIT:,} pixels")
    counts = rle.get("counts")
    if isinstance(counts, str | bytes):
        counts = _decompress(counts)
    if not isinstance(counts, list) or not all(type(run) is int and run >= 0 for run in counts):
        raise DecodeError("the counts of its RLE are neither text nor a list of numbers from 0 up")
    if sum(counts) != height * width:
        raise DecodeError(
            f"the counts of its RLE add up to {sum(counts):,} pixels, its size {height} x {width} to {height * width:,}"
        )
    ones = np.arange(len(counts)) % 2 == 1
    return np.repeat(ones, counts).reshape((height, width), order="F")


def _size(rle: Mapping[str, Any]) -> tuple[int, int]:
    size = rle.get("size")
    if not isinstance(size, list | tuple) or len(size) != 2 or not all(type(side) is int and side > 0 for side in size):
        raise DecodeError("its RLE has no size [height, width]")
    return size[0], size[1]


def _compress(counts: list[int]) -> str:
    text = bytearray()
    for position, count in enumerate(counts):
        rest = count - counts[position - 2] if position > 2 else count
        while True:
            bits, rest = rest & 0x1F, rest >> _BITS
            more = rest != (-1 if bits & _SIGN else 0)
            text.append(_FIRST + (bits | (_MORE if more else 0)))
            if not more:
                break
    return text.decode("ascii")


def _decompress(text: str | bytes) -> list[int]:
    characters = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    counts: list[int] = []
    value = shift = 0
    for character in characters:
        bits = character - _FIRST
        if not 0 <= bits < 64 or shift >= _BITS * _LONGEST:
            raise DecodeError("the counts of its RLE are not COCO's compressed text")
        value |= (bits & 0x1F) << shift
        shift += _BITS
        if bits & _MORE:
            continue
        if bits & _SIGN:
            value |= -1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    if shift:
        raise DecodeError("the counts of its RLE end in the middle of a number")
    return counts
