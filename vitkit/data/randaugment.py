"""RandAugment (Cubuk et al. 2020) for a batch: every picture draws its own operations, all share one magnitude.

Operations and ranges are big_vision's, which trained AugReg (from the TPU EfficientNet code): each is equally likely,
and magnitude 0 … 10 sweeps the range, going on past 10 (AugReg uses 15 and 20) except where there is nothing more to
do. Some are strongest at 0: posterize then keeps no bits and solarize inverts everything. Where this differs:

- geometry and cut-outs come before colour, in one sampling (bilinear; there nearest), so their grey is recoloured too;
- contrast blends with the picture's own mean, as in PIL; there a slip in the histogram makes it a constant;
- shifts and cut-outs are the same share of a picture at every size; there, pixels fit for 224.

The draws are known on the host, so an operation runs on just the pictures that drew it, without asking the device. The
eight that turn a shade into a shade share one pass: a table of 256 (curves.py) and a look-up, for few, full kernels.

Shapes: B pictures, n of them in a group, C channels, N operations for each picture. Values are 0 … 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from vitkit.data.boxes import Size, send
from vitkit.data.curves import COUNTING, CURVES, apply_curves, factor, fixed_curves, luminance
from vitkit.data.draws import uniform
from vitkit.data.warp import affine

OPERATIONS = (*CURVES, "Color", "Sharpness", "Cutout", "Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What each picture will get; all on the host."""

    kinds: np.ndarray  # (N, B) places in OPERATIONS
    signs: np.ndarray  # (N, B) -1 or 1, the direction of a movement
    centres: np.ndarray  # (N, B, 2) x and y of a cut-out, as shares of the sides


def draw(indices: ArrayLike, count: int, *, seed: int, epoch: ArrayLike) -> Drawn:
    numbers = uniform(seed, epoch, indices, "randaugment", 4 * count)
    numbers = numbers.reshape(-1, count, 4).swapaxes(0, 1)  # (N, B, 4)
    return Drawn(
        kinds=(numbers[..., 0] * len(OPERATIONS)).astype(np.int64),
        signs=1 - 2.0 * (numbers[..., 1] < 0.5),
        centres=numbers[..., 2:],
    )


def movement(drawn: Drawn, magnitude: float, size: Size) -> np.ndarray:
    """(B, 3, 3): the geometric operations of each picture as one map; the identity where it drew none."""
    height, width = size
    total = np.eye(3)
    for kinds, signs in zip(drawn.kinds, drawn.signs, strict=True):
        strength = signs * magnitude / 10
        angle, shear_x, shear_y, shift_x, shift_y = (
            np.where(kinds == OPERATIONS.index(name), strength * reach, 0.0)
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
        total = total @ affine(
            len(kinds),
            cos,
            shear_x - sin,
            shift_x + (width - cos * width + sin * height) / 2,
            sin + shear_y,
            cos,
            shift_y + (height - sin * width - cos * height) / 2,
        )
    return total


def holes(drawn: Drawn, magnitude: float, size: Size) -> np.ndarray:
    """(B, N, 4): the boxes cut out, up to 80 pixels wide at magnitude 10 for 224, empty where none was drawn."""
    height, width = size
    reach = int(magnitude / 10 * 40 * min(size) / 224) * (drawn.kinds == OPERATIONS.index("Cutout"))[..., None]
    middle = np.floor(drawn.centres * np.array([width, height]))
    return np.concatenate([middle - reach, middle + reach], axis=2).swapaxes(0, 1)


def recolour(images: Tensor, drawn: Drawn, magnitude: float) -> Tensor:
    """Applies the colour operations of each picture, in the order drawn, in place."""
    order = drawn.kinds.argsort(axis=1, kind="stable")  # pictures with the same operation side by side
    places, sorted_kinds = send(np.stack([order, np.take_along_axis(drawn.kinds, order, axis=1)]), images.device)
    tables = send(fixed_curves(magnitude), images.device)
    for layer, kinds in enumerate(drawn.kinds):
        ends = np.bincount(kinds, minlength=len(OPERATIONS)).cumsum().tolist()
        curved, coloured, sharpened = ends[len(CURVES) - 1 : len(CURVES) + 2]
        if curved:
            chosen = places[layer, :curved]
            pictures = images.index_select(0, chosen)  # (n, C, H, W)
            images.index_copy_(
                0,
                chosen,
                apply_curves(pictures, sorted_kinds[layer, :curved], ends[: len(COUNTING)], tables, magnitude),
            )
        if curved < sharpened:
            chosen = places[layer, curved:sharpened]
            pictures = images.index_select(0, chosen)
            images.index_copy_(0, chosen, enhance(pictures, coloured - curved, magnitude))
    return images


def enhance(images: Tensor, coloured: int, magnitude: float) -> Tensor:
    """Color for the first pictures, Sharpness for the others: from a plainer picture towards and past itself."""
    plain = images.clone()
    grey, smooth = plain[:coloured], plain[coloured:]
    if images.shape[1] == 3:  # without red, green and blue there is no colour to strengthen
        grey.copy_(luminance(grey))
    if min(images.shape[2:]) > 2 and len(smooth):
        # PIL's SMOOTH filter: 3 x 3 of ones, 5 in the middle, the rim kept
        smooth[:, :, 1:-1, 1:-1].mul_(4 / 13).add_(F.avg_pool2d(images[coloured:], 3, stride=1), alpha=9 / 13)
    return plain.lerp_(images, factor(magnitude)).clamp_(0, 1)
