"""Affine warps of a batch: one matrix per image, sampled once.

A matrix maps a pixel of the result to where it comes from. Rotation, shear and translation multiply into one matrix, so
an image is interpolated once however many of them it gets. There is no antialiasing: the size does not change.

Shapes: B images, C channels. Matrices are (B, 3, 3) on the host, in pixels, the first pixel's centre at 0.5.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from vitkit.data.random_boxes import box_masks, to_device
from vitkit.data.resize import Size

GREY = 0.5  # the fill outside the image; 128 of 255 in the originals


def affine_matrices(count: int, *entries: ArrayLike) -> np.ndarray:
    """Build (B, 3, 3) from a … f, numbers or (B,): x' = a·x + b·y + c, y' = d·x + e·y + f, as PIL.Image.transform."""
    matrices = np.zeros((count, 9))
    for column, entry in enumerate(entries):
        matrices[:, column] = entry
    matrices[:, 8] = 1
    return matrices.reshape(-1, 3, 3)


def sample(images: Tensor, matrices: np.ndarray, holes: np.ndarray) -> Tensor:
    """Warp (B, C, height, width) float images, bilinear, to the same shape.

    Pixels that come from outside the image, and those inside the boxes `holes` (B, N, 4) of the result, become grey.
    """
    size = height, width = images.shape[2], images.shape[3]
    grid = sampling_grid(matrices, size, size, images.device)
    sampled = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    outside_x, outside_y = (grid.abs_() > 1).unbind(-1)
    grey = (outside_x | outside_y).unsqueeze(1)  # (B, 1, height, width)
    grey |= box_masks(holes.reshape(-1, 4), (height, width), images.device).unflatten(0, holes.shape[:2]).any(1)
    return sampled.masked_fill_(grey, GREY)


def sampling_grid(matrices: np.ndarray, source: Size, result: Size, device: torch.device) -> Tensor:
    """Return where each pixel of the result comes from in the source, as grid_sample reads it: (B, height, width, 2).

    Coordinates are x and y, from -1 to 1 over the source; those beyond are outside of it.
    """
    to_unit = np.array([[2 / source[1], 0, -1], [0, 2 / source[0], -1]])
    entries = to_device((to_unit @ matrices).reshape(-1, 6), device)[:, None, None]  # (B, 1, 1, 6)
    step_x, step_y, origin = entries.unflatten(-1, (2, 3)).unbind(-1)  # (B, 1, 1, 2) each
    x = torch.arange(0.5, result[1], device=device)[:, None]  # (width, 1)
    y = torch.arange(0.5, result[0], device=device)[:, None, None]  # (height, 1, 1)
    # not affine_grid: that is a matrix product, and TF32, which training often allows, is off by 0.1 pixels
    return step_x * x + (step_y * y + origin)
