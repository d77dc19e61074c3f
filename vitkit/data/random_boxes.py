"""Random boxes inside an image: where to crop and what to erase.

Boxes are drawn on the host, for the whole batch at once; only the masks made from them go to the images' device.

Shapes: B images. A box is (left, top, right, bottom) in pixels, edges not centres: (0, 0, width, height) is the image.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitkit.data.resize import Size

Range = tuple[float, float]


def random_boxes(draws: np.ndarray, size: Size, *, area: Range, aspect: Range) -> np.ndarray:
    """Turn (B, 4) numbers in [0, 1) into (B, 4) boxes: area uniform, aspect ratio log-uniform, position uniform.

    Inception's crop rejects a box that does not fit and draws again, so large areas come up too seldom. Here the aspect
    ratio is drawn among those that fit the area, and areas stay uniform.
    """
    height, width = size
    draws = draws.astype(np.float64)
    share = area[0] + (area[1] - area[0]) * draws[:, 0]
    # A box of this share fits when its width / height lies between these two; for an image far longer than `aspect`
    # allows, the clipping makes the box as long as needed.
    narrowest, widest = share * width / height, width / height / share
    low, high = (np.log(np.clip(bound, narrowest, widest)) for bound in aspect)
    ratio = np.exp(low + (high - low) * draws[:, 1])
    pixels = share * (height * width)
    extent = np.stack(
        [np.minimum(np.sqrt(pixels * ratio), width), np.minimum(np.sqrt(pixels / ratio), height)], axis=1
    )  # (B, 2) wide, high
    corner = (np.array([width, height]) - extent) * draws[:, 2:]
    return np.concatenate([corner, corner + extent], axis=1)


def random_box(draws: Sequence[float], size: Size, *, area: Range, aspect: Range) -> tuple[float, float, float, float]:
    """Do `random_boxes` for one image: 4 µs instead of 45, where decoding and resizing together take about 1,200."""
    height, width = size
    share = area[0] + (area[1] - area[0]) * draws[0]
    narrowest, widest = share * width / height, width / height / share
    least, most = (math.log(min(max(bound, narrowest), widest)) for bound in aspect)
    ratio, pixels = math.exp(least + (most - least) * draws[1]), share * height * width
    wide, high = min(math.sqrt(pixels * ratio), width), min(math.sqrt(pixels / ratio), height)
    left, top = (width - wide) * draws[2], (height - high) * draws[3]
    return left, top, left + wide, top + high


def box_masks(boxes: np.ndarray, size: Size, device: torch.device) -> Tensor:
    """Return (B, 1, height, width) for (B, 4) boxes: true for the pixels whose centre is in the box."""
    height, width = size
    centres = torch.arange(0.5, max(size), device=device)
    edges = to_device(boxes, device)[..., None]  # (B, 4, 1)
    between = (centres >= edges[:, :2]) & (centres < edges[:, 2:])  # (B, 2, longer side): x, y
    return between[:, 1, None, :height, None] & between[:, 0, None, None, :width]


def to_device(table: np.ndarray, device: torch.device) -> Tensor:
    """Copy a small table to the device without waiting: the driver stages up to 64 KB at once (1,600 images here)."""
    values = table.astype(np.float32) if table.dtype.kind == "f" else table
    return torch.from_numpy(values).to(device, non_blocking=True)
