"""Crops of different sizes → a batch of one size on a GPU: `vitkit.data.crop_resize` in two kernels.

The weights are those of the plain version, and the sums are of integers, so the bits are the same. Columns come first,
as uint8; only rows that a crop has are computed.

Shapes: B crops, C channels, H most rows of a crop, (height, width) of the result, K taps.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.data.crop_resize import Crops, Taps, axis_taps
from vitkit.data.resize import Size
from vitkit.kernels.dispatch import launcher

ROWS = 4  # rows of a crop for each program


@triton.jit(do_not_specialize=["H", "K"])  # which every batch has of its own: compile once for all
def across_kernel(
    pixels, starts, strides, heights, widths, flips, first, weights, precisions, out, H, width, K,
    C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Resize the columns of some rows of one crop: packed pixels → (B, C, H, width)."""
    crop = tl.program_id(0).to(tl.int64)
    height, last = tl.load(heights + crop), tl.load(widths + crop) - 1
    start, stride = tl.load(starts + crop), tl.load(strides + crop)
    bits = tl.load(precisions + crop)
    flipped = tl.load(flips + crop)
    x = tl.arange(0, BLOCK)
    inside = x < width
    begin = tl.load(first + crop * width + x, mask=inside, other=0)
    column = tl.where(flipped != 0, width - 1 - x, x)
    for row in range(ROWS):
        y = tl.program_id(1).to(tl.int64) * ROWS + row
        used = inside & (y < height)
        for channel in tl.static_range(C):
            total = tl.zeros([BLOCK], tl.int32) + (1 << (bits - 1))
            for tap in range(K):
                weight = tl.load(weights + (crop * width + x) * K + tap, mask=used, other=0)
                position = tl.minimum(begin + tap, last)  # weights beyond the last column are 0
                value = tl.load(pixels + start + y * stride + position * C + channel, mask=used, other=0)
                total += value.to(tl.int32) * weight
            grey = tl.minimum(tl.maximum(total >> bits, 0), 255)
            tl.store(out + ((crop * C + channel) * H + y) * width + column, grey.to(tl.uint8), mask=used)


@triton.jit(do_not_specialize=["H", "K"])  # which every batch has of its own: compile once for all
def down_kernel(
    between, heights, first, weights, precisions, out, H, height, width, K,
    C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Resize the rows: one row of the result, (B, C, H, width) → (B, C, height, width)."""
    plane, y = tl.program_id(0).to(tl.int64), tl.program_id(1)
    crop = plane // C
    last, bits = tl.load(heights + crop) - 1, tl.load(precisions + crop)
    begin = tl.load(first + crop * height + y)
    x = tl.arange(0, BLOCK)
    inside = x < width
    total = tl.zeros([BLOCK], tl.int32) + (1 << (bits - 1))
    for tap in range(K):
        weight = tl.load(weights + (crop * height + y) * K + tap)
        row = tl.minimum(begin + tap, last)
        value = tl.load(between + (plane * H + row) * width + x, mask=inside, other=0)
        total += value.to(tl.int32) * weight
    grey = tl.minimum(tl.maximum(total >> bits, 0), 255)
    tl.store(out + (plane * height + y) * width + x, grey.to(tl.uint8), mask=inside)


def crop_resize(pixels: Tensor, crops: Crops, image: Size, channels: int) -> Tensor:
    """Return the crops of packed (h, w, C) uint8 images, resized bilinearly with antialiasing: (B, C, *image) uint8."""
    count, most, (height, width) = len(crops.start), crops.most[0], image
    across, down = axis_taps(crops.width, crops.most[1], width), axis_taps(crops.height, most, height)
    block = triton.next_power_of_2(width)
    between = torch.empty(count, channels, most, width, dtype=torch.uint8, device=pixels.device)
    launcher(across_kernel)[count, triton.cdiv(most, ROWS)](
        pixels, crops.start, crops.stride, crops.height, crops.width, crops.flipped.to(torch.uint8),
        *_arguments(across), between, most, width, across.weights.shape[2], C=channels, ROWS=ROWS, BLOCK=block,
    )  # fmt: skip
    out = torch.empty(count, channels, height, width, dtype=torch.uint8, device=pixels.device)
    launcher(down_kernel)[count * channels, height](
        between, crops.height, *_arguments(down), out, most, height, width, down.weights.shape[2],
        C=channels, BLOCK=block,
    )  # fmt: skip
    return out


def _arguments(taps: Taps) -> tuple[Tensor, Tensor, Tensor]:
    return taps.first.contiguous(), taps.weights.contiguous(), taps.precision.contiguous()
