"""Crops of different sizes → a batch of one size, on the device that holds the images: torch's uint8 resize, batched.

torch's own kernel for uint8 runs on the CPU, on one image at a time. This is its arithmetic, which is Pillow's: weights
in float64, rounded to integers of 15 bits, and integer sums, columns first, each pass rounded to whole grey levels.
Every operation is exact or rounded as IEEE 754 says, so a CPU and a GPU give the same bits, and those are the bits of
`vitkit.data.resize` where torch's kernel rounds its weights alike (tested for the versions that vitkit supports).

Shapes: B crops, C channels, (height, width) of the result, K taps: the most pixels that one result is a sum of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitkit.data.resize import Size

WEIGHT_BITS = 15  # of torch's integer weights, without their sign
MAX_PRECISION = 22  # bits after the binary point, at most
CHUNK_BYTES = 2**28  # of temporary memory, roughly; more crops than that go in turns


@dataclass(frozen=True, kw_only=True)
class Crops:
    """Boxes of packed images, one for each image of a batch: where they begin in the packed pixels, and their sizes."""

    start: Tensor  # (B,) int64: the first byte of the box in the packed pixels
    stride: Tensor  # (B,) int64: bytes from one row of its image to the next
    height: Tensor  # (B,) int64
    width: Tensor  # (B,) int64
    flipped: Tensor  # (B,) bool: from left to right
    most: Size  # the largest height and width among them, known on the host

    def part(self, first: int, stop: int) -> Crops:
        rows = slice(first, stop)
        return Crops(
            start=self.start[rows],
            stride=self.stride[rows],
            height=self.height[rows],
            width=self.width[rows],
            flipped=self.flipped[rows],
            most=self.most,
        )


@dataclass(frozen=True, kw_only=True)
class Taps:
    """The weighted sums of one pass: result i is the sum of its weights times the pixels from `first` on, shifted."""

    first: Tensor  # (B, size) int64
    weights: Tensor  # (B, size, K) int32
    precision: Tensor  # (B,) int32: the bits after the weights' binary point


CropResize = Callable[[Tensor, Crops, Size, int], Tensor]


def crop_resize(pixels: Tensor, crops: Crops, image: Size, channels: int) -> Tensor:
    """Return the crops of packed (h, w, C) uint8 images, resized bilinearly with antialiasing: (B, C, *image) uint8."""
    per_crop = crops.most[0] * image[1] * channels * 32  # int64 addresses, int32 values and sums
    step = max(CHUNK_BYTES // max(per_crop, 1), 1)
    parts = [crops.part(first, first + step) for first in range(0, len(crops.start), step)]
    return torch.cat([_crop_resize(pixels, part, image, channels) for part in parts])


def _crop_resize(pixels: Tensor, crops: Crops, image: Size, channels: int) -> Tensor:
    across, down = axis_taps(crops.width, crops.most[1], image[1]), axis_taps(crops.height, crops.most[0], image[0])
    rows = torch.arange(crops.most[0], device=pixels.device)
    rows = torch.minimum(rows, crops.height[:, None] - 1)  # (B, H): rows below a smaller crop are not used
    row_starts = crops.start[:, None] + rows * crops.stride[:, None]
    colours = torch.arange(channels, device=pixels.device)
    last = crops.width[:, None] - 1
    sums: Tensor | int = 0
    for tap in range(across.weights.shape[2]):
        columns = torch.minimum(across.first + tap, last) * channels  # weights beyond the last column are 0
        address = row_starts[:, :, None, None] + (columns[:, :, None] + colours)[:, None]  # (B, H, width, C)
        sums = sums + pixels[address].int() * across.weights[:, None, :, tap, None]
    between = _shift(sums, across.precision)  # (B, H, width, C)
    sums = 0
    last = crops.height[:, None] - 1
    for tap in range(down.weights.shape[2]):
        chosen = torch.minimum(down.first + tap, last)[:, :, None, None].expand(-1, -1, *between.shape[2:])
        sums = sums + between.gather(1, chosen) * down.weights[:, :, tap, None, None]
    result = _shift(sums, down.precision).permute(0, 3, 1, 2)
    return torch.where(crops.flipped[:, None, None, None], result.flip(-1), result).byte()


def _shift(sums: Tensor | int, precision: Tensor) -> Tensor:
    """Divide by 2 ** precision, halves up, within 0 to 255: the integer arithmetic of torch and Pillow."""
    assert isinstance(sums, Tensor)
    bits = precision[:, None, None, None]
    return ((sums + (1 << (bits - 1))) >> bits).clamp(0, 255)


def axis_taps(sides: Tensor, most: int, size: int) -> Taps:
    """Return the taps that resize (B,) sides, the largest of which is `most`, to `size` pixels."""
    scale = sides.double()[:, None] / size  # (B, 1)
    reach = scale.clamp(min=1)  # half the width of the triangle filter
    centre = scale * (torch.arange(size, device=sides.device) + 0.5)  # (B, size)
    first = (centre - reach + 0.5).long().clamp(min=0)
    stop = torch.minimum((centre + reach + 0.5).long(), sides[:, None])
    taps = torch.arange(taps_for(most, size), device=sides.device)
    position = first[:, :, None] + taps  # (B, size, K)
    distance = ((position - centre[:, :, None] + 0.5) * (1 / reach)[:, :, None]).abs()
    values = (1 - distance).clamp(min=0).where(position < stop[:, :, None], 0)
    total = values[:, :, 0]
    for tap in range(1, len(taps)):  # summed in this order, as torch does
        total = total + values[:, :, tap]
    weights = values / total[:, :, None]
    precision = _precision(weights.amax(dim=(1, 2)))
    scaled = weights * (2.0 ** precision.double())[:, None, None] + 0.5
    return Taps(first=first, weights=scaled.int(), precision=precision)


def taps_for(most: int, size: int) -> int:
    """Return how many pixels a result can be a sum of, when `most` pixels become `size`."""
    reach = max(most / size, 1.0)
    return min(2 * -int(-reach // 1) + 1, most)


def _precision(largest: Tensor) -> Tensor:
    """Return the bits after the binary point with which weights up to (B,) `largest` fit into WEIGHT_BITS."""
    bits = torch.arange(1, MAX_PRECISION + 1, device=largest.device)
    too_large = (largest[:, None] * (2.0 ** bits.double()) + 0.5).long() >= 2**WEIGHT_BITS  # (B, bits), false … true
    return (~too_large).sum(1).int()
