"""Crops of packed images, resized in two passes over memory: the integers of `vitkit.data.crop_resize`, on a GPU.

torch's operators would write addresses and products of every tap to memory; here they stay in registers.

Shapes: B crops, H the largest of their heights, C channels, (height, width) of the result, K taps.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitkit.data.crop_resize import Crops, axis_taps
from vitkit.data.resize import Size
from vitkit.kernels.dispatch import launcher

TILES = {"ROWS": 8, "COLUMNS": 128, "num_warps": 4}
CHUNK_BYTES = 2**30  # of memory between the passes; more crops than that go in turns


@triton.jit
def _shifted(sums, bits):
    """Divide by 2 ** bits, halves up, within 0 to 255."""
    return tl.minimum(tl.maximum((sums + (1 << (bits - 1))) >> bits, 0), 255).to(tl.uint8)


@triton.jit(do_not_specialize=["H", "K"])  # every batch has its own: one compiled kernel for all
def across_kernel(
    pixels,
    starts,
    strides,
    heights,
    widths,
    first,
    weights,
    precision,
    between,
    H,
    width,
    C,
    K,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Resize the rows of one crop: (h, w, C) of the packed pixels → (h, width, C) of `between`, (B, H, width, C)."""
    crop = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width * C
    x, colour = columns // C, columns % C
    mask = (rows[:, None] < tl.load(heights + crop)) & inside[None, :]
    row_starts = tl.load(starts + crop) + rows.to(tl.int64) * tl.load(strides + crop)
    from_column = tl.load(first + crop * width + x, mask=inside, other=0)
    last = tl.load(widths + crop) - 1
    sums = tl.zeros((ROWS, COLUMNS), tl.int32)
    for tap in range(K):
        source = tl.minimum(from_column + tap, last) * C + colour  # weights beyond the last column are 0
        weight = tl.load(weights + (crop * width + x) * K + tap, mask=inside, other=0)
        values = tl.load(pixels + row_starts[:, None] + source[None, :], mask=mask, other=0)
        sums += values.to(tl.int32) * weight[None, :]
    out = _shifted(sums, tl.load(precision + crop))
    tl.store(between + (crop * H + rows[:, None]) * (width * C) + columns[None, :], out, mask=mask)


@triton.jit(do_not_specialize=["H", "K"])
def down_kernel(
    between,
    heights,
    first,
    weights,
    precision,
    flipped,
    out,
    H,
    height,
    width,
    C,
    K,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Resize the columns of one crop, and flip it: (h, width, C) of `between` → (C, height, width)."""
    crop = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (rows[:, None] < height) & (columns[None, :] < width * C)
    from_row = tl.load(first + crop * height + rows, mask=rows < height, other=0)
    last = tl.load(heights + crop) - 1
    sums = tl.zeros((ROWS, COLUMNS), tl.int32)
    for tap in range(K):
        source = tl.minimum(from_row + tap, last)
        weight = tl.load(weights + (crop * height + rows) * K + tap, mask=rows < height, other=0)
        address = (crop * H + source[:, None]) * (width * C) + columns[None, :]
        sums += tl.load(between + address, mask=mask, other=0).to(tl.int32) * weight[:, None]
    x, colour = columns // C, columns % C
    x = tl.where(tl.load(flipped + crop) != 0, width - 1 - x, x)
    address = (crop * C + colour[None, :]) * (height * width) + rows[:, None] * width + x[None, :]
    tl.store(out + address, _shifted(sums, tl.load(precision + crop)), mask=mask)


def crop_resize_on_gpu(pixels: Tensor, crops: Crops, image: Size, channels: int) -> Tensor:
    """Return what `vitkit.data.crop_resize.crop_resize` returns, bit for bit: (B, C, *image) uint8."""
    step = max(CHUNK_BYTES // max(crops.most[0] * image[1] * channels, 1), 1)
    parts = [crops.part(first, first + step) for first in range(0, len(crops.start), step)]
    return torch.cat([_crop_resize(pixels, part, image, channels) for part in parts])


def _crop_resize(pixels: Tensor, crops: Crops, image: Size, channels: int) -> Tensor:
    (most, widest), (height, width), count = crops.most, image, len(crops.start)
    across, down = axis_taps(crops.width, widest, width), axis_taps(crops.height, most, height)
    between = pixels.new_empty(count, most, width, channels)
    out = pixels.new_empty(count, channels, height, width)
    tiles = triton.cdiv(width * channels, TILES["COLUMNS"])
    launcher(across_kernel)[(tiles, triton.cdiv(most, TILES["ROWS"]), count)](
        pixels,
        *(tensor.contiguous() for tensor in (crops.start, crops.stride, crops.height, crops.width)),
        *(tensor.contiguous() for tensor in (across.first, across.weights, across.precision)),
        between,
        most,
        width,
        channels,
        across.weights.shape[2],
        **TILES,
    )
    launcher(down_kernel)[(tiles, triton.cdiv(height, TILES["ROWS"]), count)](
        between,
        crops.height.contiguous(),
        *(tensor.contiguous() for tensor in (down.first, down.weights, down.precision)),
        crops.flipped.to(torch.uint8),
        out,
        most,
        height,
        width,
        channels,
        down.weights.shape[2],
        **TILES,
    )
    return out
