"""RandAugment (Cubuk et al. 2020) for a batch: every image draws its own operations, all share one magnitude.

Operations and ranges are big_vision's, which trained AugReg (from the TPU EfficientNet code): each is equally likely,
and magnitude 0 … 10 sweeps the range, going on past 10 (AugReg uses 15 and 20) except where there is nothing more to
do. Some are strongest at 0: posterize then keeps no bits and solarize inverts everything. Where this differs:

- geometry and cut-outs come before colour, in one sampling (bilinear; there nearest), so their grey is recoloured too;
- contrast blends with the image's own mean, as in PIL; there a slip in the histogram makes it a constant;
- shifts and cut-outs are the same share of an image at every size; there, pixels fit for 224.

The draws are known on the host, so an operation runs on just the images that drew it, without asking the device. The
eight tone curves share one pass: a table of 256 entries (tone_curves.py) and a look-up, for few, full kernels.

Shapes: B images, n of them in a group, C channels, N operations for each image. Values are 0 … 1.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from vitkit.data.random_boxes import to_device
from vitkit.data.resize import Size
from vitkit.data.stateless_rng import uniform
from vitkit.data.tone_curves import CURVES, HISTOGRAM_CURVES, apply_curves, enhancement_factor, fixed_curves, luminance
from vitkit.data.warp import affine_matrices

OPERATIONS = (*CURVES, "Color", "Sharpness", "Cutout", "Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")


@dataclass(frozen=True, kw_only=True)
class DrawnOperations:
    """The operations that each image drew; all on the host."""

    operations: np.ndarray  # (N, B) indices into OPERATIONS
    signs: np.ndarray  # (N, B) -1 or 1, the direction of rotation, shear and translation
    centres: np.ndarray  # (N, B, 2) x and y of a cut-out, as shares of the sides


def draw_operations(indices: ArrayLike, count: int, *, seed: int, epoch: ArrayLike) -> DrawnOperations:
    draws = uniform(seed, epoch, indices, "randaugment", 4 * count)
    draws = draws.reshape(-1, count, 4).swapaxes(0, 1)  # (N, B, 4)
    return DrawnOperations(
        operations=(draws[..., 0] * len(OPERATIONS)).astype(np.int64),
        signs=1 - 2.0 * (draws[..., 1] < 0.5),
        centres=draws[..., 2:],
    )


def affine_maps(drawn: DrawnOperations, magnitude: float, size: Size) -> np.ndarray:
    """Return (B, 3, 3): the geometric operations of each image as one matrix, the identity where it drew none."""
    height, width = size
    total = np.eye(3)
    for operations, signs in zip(drawn.operations, drawn.signs, strict=True):
        strength = signs * magnitude / 10
        angle, shear_x, shear_y, shift_x, shift_y = (
            np.where(operations == OPERATIONS.index(name), strength * reach, 0.0)
            for name, reach in (
                ("Rotate", math.radians(30)),
                ("ShearX", 0.3),
                ("ShearY", 0.3),
                ("TranslateX", width * 100 / 224),
                ("TranslateY", height * 100 / 224),
            )
        )
        # At most one of the five is not zero, so adding them is choosing. Rotation is about the centre, shear about the
        # upper left corner, as in the originals.
        cos, sin = np.cos(angle), np.sin(angle)
        total = total @ affine_matrices(
            len(operations),
            cos,
            shear_x - sin,
            shift_x + (width - cos * width + sin * height) / 2,
            sin + shear_y,
            cos,
            shift_y + (height - sin * width - cos * height) / 2,
        )
    return total


def cutout_boxes(drawn: DrawnOperations, magnitude: float, size: Size) -> np.ndarray:
    """Return (B, N, 4): the boxes cut out, up to 80 pixels wide at magnitude 10 for 224, empty where none was drawn."""
    height, width = size
    reach = int(magnitude / 10 * 40 * min(size) / 224) * (drawn.operations == OPERATIONS.index("Cutout"))[..., None]
    centre = np.floor(drawn.centres * np.array([width, height]))
    return np.concatenate([centre - reach, centre + reach], axis=2).swapaxes(0, 1)


def apply_color_operations(images: Tensor, drawn: DrawnOperations, magnitude: float) -> Tensor:
    """Apply the colour operations of each image in place, in the order drawn."""
    order = drawn.operations.argsort(axis=1, kind="stable")  # groups images by operation
    sorted_operations = np.take_along_axis(drawn.operations, order, axis=1)
    rows, groups = to_device(np.stack([order, sorted_operations]), images.device)
    tables = to_device(fixed_curves(magnitude), images.device)
    for layer, operations in enumerate(drawn.operations):
        ends = np.bincount(operations, minlength=len(OPERATIONS)).cumsum().tolist()
        curves_end, color_end, sharpness_end = ends[len(CURVES) - 1 : len(CURVES) + 2]
        if curves_end:
            chosen = rows[layer, :curves_end]
            group = images.index_select(0, chosen)  # (n, C, H, W)
            histogram_ends = ends[: len(HISTOGRAM_CURVES)]
            curved = apply_curves(group, groups[layer, :curves_end], histogram_ends, tables, magnitude)
            images.index_copy_(0, chosen, curved)
        if curves_end < sharpness_end:
            chosen = rows[layer, curves_end:sharpness_end]
            group = images.index_select(0, chosen)
            images.index_copy_(0, chosen, enhance(group, color_end - curves_end, magnitude))
    return images


def enhance(images: Tensor, color: int, magnitude: float) -> Tensor:
    """Apply Color to the first `color` images and Sharpness to the others: blend with a degenerate image, as in PIL."""
    degenerate = images.clone()
    grey, smooth = degenerate[:color], degenerate[color:]
    if images.shape[1] == 3:  # without red, green and blue there is no colour to strengthen
        grey.copy_(luminance(grey))
    if min(images.shape[2:]) > 2 and len(smooth):
        # PIL's SMOOTH filter: 3 x 3 of ones, 5 in the middle, the border kept
        smooth[:, :, 1:-1, 1:-1].mul_(4 / 13).add_(F.avg_pool2d(images[color:], 3, stride=1), alpha=9 / 13)
    return degenerate.lerp_(images, enhancement_factor(magnitude)).clamp_(0, 1)
