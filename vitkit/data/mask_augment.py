"""Augmentation of images and their masks, whole batches at a time on the training device: scale, crop, flip, colour.

The masks move with the images: both are sampled once, by the same affine map. All draws are functions of (seed, epoch,
index), made on the host, where the indices are; the device gets small tables and is never waited for.

Shapes: B images, C channels, (Hc, Wc) of the canvas that images and masks come at, (height, width) of the result.
"""

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vitkit.data.colour_jitter import ColourDraws, draw_colours, jitter_colours
from vitkit.data.masked_transforms import split_mask
from vitkit.data.masks.ignore import IGNORE
from vitkit.data.random_boxes import to_device
from vitkit.data.resize import Size
from vitkit.data.stateless_rng import uniform
from vitkit.data.warp import GREY, affine_matrices, sampling_grid
from vitkit.errors import ConfigError

MAX_HALVINGS = 3  # of an image that is drawn smaller than the canvas: an eighth of a side


@dataclass(frozen=True, kw_only=True)
class MaskAugment:
    """The options; by default nothing is random."""

    scale: tuple[float, float] = (1.0, 1.0)  # sides of the image over those of the result, drawn log-uniformly
    aspect: tuple[float, float] = (1.0, 1.0)  # width / height, over that of the whole image in the result
    flip: bool = False
    colour: float = 0.0  # strength of the colour jitter; 1 is that of SSD and Mask2Former

    def __post_init__(self) -> None:
        for name, (low, high) in (("scale", self.scale), ("aspect", self.aspect)):
            if not 0 < low <= high:
                raise ConfigError(f"augment.{name} = {(low, high)} is not a range", try_="(least, greatest), above 0")


@dataclass(frozen=True, kw_only=True)
class ViewDraws:
    """The random view of each image of a batch; all on the host."""

    matrices: NDArray[np.float64]  # (B, 3, 3) from a pixel of the result to one of the canvas
    reduction: NDArray[np.float64]  # (B,) pixels of the canvas per pixel of the result, along the side with more


def draw_views(
    indices: ArrayLike, options: MaskAugment, canvas: Size, result: Size, *, seed: int, epoch: ArrayLike
) -> ViewDraws:
    """Draw scale, shape, place and flip of each image.

    An image that is larger than the result is cropped at a random place; a smaller one lies at a random place in it.
    """
    draws = uniform(seed, epoch, indices, "masked-view", 5).astype(np.float64)
    low, high = np.log(options.scale)
    scale = np.exp(low + (high - low) * draws[:, 0])
    low, high = np.log(options.aspect)
    stretch = np.exp((low + (high - low) * draws[:, 1]) / 2)
    extent = np.stack([scale * stretch, scale / stretch], axis=1)  # (B, 2) x and y: sides of the image / the result's
    corner = (1 - extent) * draws[:, 2:4]  # where the image begins in the result, as a share of its sides
    flipped = options.flip & (draws[:, 4] < 0.5)
    step = np.array([canvas[1] / result[1], canvas[0] / result[0]]) / extent  # (B, 2) canvas pixels per result pixel
    first = -corner * np.array([canvas[1], canvas[0]]) / extent  # (B, 2) of the result's corner, on the canvas
    across = np.where(flipped, -step[:, 0], step[:, 0])
    left = np.where(flipped, canvas[1] - first[:, 0], first[:, 0])
    matrices = affine_matrices(len(draws), across, 0, left, 0, step[:, 1], first[:, 1])
    return ViewDraws(matrices=matrices, reduction=step.max(axis=1))


def augment_with_masks(
    joined: Tensor, indices: ArrayLike, options: MaskAugment, result: Size, *, seed: int, epoch: ArrayLike
) -> tuple[Tensor, Tensor]:
    """Augment (B, C + 1, Hc, Wc) uint8 → images (B, C, height, width) float32 of 0 … 1 and masks (B, height, width).

    Beyond an image its mask is ignored and its colour is grey. `epoch` is (B,) on the host where it differs.
    """
    images, masks = split_mask(joined)
    canvas = (joined.shape[2], joined.shape[3])
    views = draw_views(indices, options, canvas, result, seed=seed, epoch=epoch)
    grid = sampling_grid(views.matrices, canvas, result, joined.device)
    pixels = _sample_reduced(images / 255, grid, views.reduction)
    outside = (grid.abs() > 1).any(dim=-1)  # (B, height, width)
    pixels = pixels.masked_fill_(outside[:, None], GREY)
    moved = _nearest(masks, grid).masked_fill_(outside, IGNORE)
    if options.colour:
        colours: ColourDraws = draw_colours(indices, options.colour, seed=seed, epoch=epoch)
        pixels = jitter_colours(pixels, colours)
    return pixels, moved


def _sample_reduced(images: Tensor, grid: Tensor, reduction: NDArray[np.float64]) -> Tensor:
    """Sample bilinearly from (B, C, Hc, Wc); images that become much smaller are halved before, against aliasing."""
    halvings = np.clip(np.floor(np.log2(np.maximum(reduction, 1) * (1 + 1e-6))), 0, MAX_HALVINGS).astype(np.int64)
    sampled = images.new_empty(len(images), images.shape[1], *grid.shape[1:3])
    level = images
    for number in range(MAX_HALVINGS + 1):
        rows = np.flatnonzero(halvings == number)
        if len(rows):
            chosen = to_device(rows, images.device)
            part = F.grid_sample(
                level.index_select(0, chosen),
                grid.index_select(0, chosen),
                mode="bilinear",
                padding_mode="border",
                align_corners=False,
            )
            sampled.index_copy_(0, chosen, part)
        if (halvings > number).any():
            # not avg_pool2d: of an odd side it would leave a row out, or reach beyond the image
            level = F.adaptive_avg_pool2d(level, (-(-level.shape[2] // 2), -(-level.shape[3] // 2)))
    return sampled


def _nearest(masks: Tensor, grid: Tensor) -> Tensor:
    """Return the class numbers (B, height, width) at the nearest pixels of (B, Hc, Wc); grid_sample has no integers."""
    height, width = masks.shape[1:]
    x, y = grid.unbind(dim=-1)
    columns = ((x + 1) * (width / 2)).floor().long().clamp_(0, width - 1)
    rows = ((y + 1) * (height / 2)).floor().long().clamp_(0, height - 1)
    return masks.flatten(1).gather(1, (rows * width + columns).flatten(1)).view_as(columns)
