"""Every geometric change of a batch as one affine map per picture, and one sampling for all of them.

A map says where a pixel of the result comes from. Crop, flip, rotation, shear and shift multiply into one matrix, so a
picture is interpolated once however many of them it gets. There is no antialiasing: the pictures arrive at about the
size they leave with (the decoder has resized them), and a crop only enlarges.

Shapes: B pictures, C channels. Maps are (B, 3, 3) on the host, in pixels, the first pixel's centre at 0.5.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from vitkit.data.boxes import Size, inside, send

GREY = 0.5  # what shows where a picture has been moved away; 128 of 255 in the originals


def affine(count: int, *entries: ArrayLike) -> np.ndarray:
    """(B, 3, 3) from a … f, numbers or (B,): x' = a·x + b·y + c, y' = d·x + e·y + f, as PIL.Image.transform has it."""
    maps = np.zeros((count, 9))
    for place, entry in enumerate(entries):
        maps[:, place] = entry
    maps[:, 8] = 1
    return maps.reshape(-1, 3, 3)


def crop_map(boxes: np.ndarray, size: Size) -> np.ndarray:
    """The box fills the picture."""
    left, top, right, bottom = boxes.T
    return affine(len(boxes), (right - left) / size[1], 0, left, 0, (bottom - top) / size[0], top)


def flip_map(flipped: np.ndarray, size: Size) -> np.ndarray:
    """Left and right change places where `flipped` (B,) is true."""
    return affine(len(flipped), 1 - 2.0 * flipped, 0, flipped * size[1], 0, 1, 0)


def sample(
    images: Tensor, maps: np.ndarray, frames: np.ndarray | None = None, holes: np.ndarray | None = None
) -> Tensor:
    """(B, C, height, width) float → the same shape, bilinear.

    Grey are the pixels that come from outside the picture's box in `frames` (B, 4) and those inside its boxes in
    `holes` (B, N, 4) of the result; without frames the border is repeated.
    """
    height, width = images.shape[2:]
    to_unit = np.array([[2 / width, 0, -1], [0, 2 / height, -1]])  # grid_sample's -1 … 1
    table = (to_unit @ maps).reshape(-1, 6)  # (B, 6)
    if frames is not None:
        start, end = frames[:, :2], frames[:, 2:]
        scale = np.array([1 / width, 1 / height])
        table = np.concatenate([table, (start + end) * scale - 1, (end - start) * scale], axis=1)  # (B, 10)
    entries = send(table, images.device)[:, None, None]  # (B, 1, 1, 6 or 10)
    step_x, step_y, origin = entries[..., :6].unflatten(-1, (2, 3)).unbind(-1)  # (B, 1, 1, 2) each
    x = torch.arange(0.5, width, device=images.device)[:, None]  # (width, 1)
    y = torch.arange(0.5, height, device=images.device)[:, None, None]  # (height, 1, 1)
    # By hand, not affine_grid: that is a matrix product, and TF32, which training often allows, is off by 0.1 pixels
    grid = step_x * x + (step_y * y + origin)  # (B, height, width, 2)
    sampled = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    if frames is None:
        return sampled
    beyond_x, beyond_y = (grid.sub_(entries[..., 6:8]).abs_() > entries[..., 8:]).unbind(-1)
    grey = (beyond_x | beyond_y).unsqueeze(1)  # (B, 1, height, width)
    if holes is not None:
        grey |= inside(holes.reshape(-1, 4), (height, width), images.device).unflatten(0, holes.shape[:2]).any(1)
    return sampled.masked_fill_(grey, GREY)
