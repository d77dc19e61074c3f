"""Augmentation of whole batches on the training device: RandAugment and random erasing, then mixup or CutMix.

Crop and flip come earlier, in transforms.TrainTransform, which has the image at full size. Per-image augmentation is a
function of (seed, epoch, index), mixing of (seed, step, rank): the same in any batch, with any number of workers, and
after a resume. Both are drawn on the host, where the indices are; the device gets small tables and is never waited for.

Shapes: B images, C channels, K classes. Values are 0 … 1, before normalisation; uint8 is scaled to that first.
"""

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vitkit.data import randaugment
from vitkit.data.random_boxes import box_masks, random_boxes, to_device
from vitkit.data.stateless_rng import uniform
from vitkit.data.warp import sample
from vitkit.errors import ConfigError, SizeError

ERASED_AREA, ERASED_ASPECT = (0.02, 1 / 3), (0.3, 1 / 0.3)  # Zhong et al. 2020, section 5.2


@dataclass(frozen=True, kw_only=True)
class Augment:
    """The options of batch augmentation; by default everything is off."""

    randaugment: tuple[int, float] | None = None  # number of operations, and their magnitude (10 is much)
    erase: float = 0.0  # the share of images with a box painted over
    mixup: float = 0.0  # alpha of the Beta distribution; 0 is off
    cutmix: float = 0.0  # likewise; with both, each batch gets one or the other

    def __post_init__(self) -> None:
        if not 0 <= self.erase <= 1:
            raise ConfigError(f"augment: erase={self.erase} is not a share of the images", try_="0 … 1")
        for name, alpha in (("mixup", self.mixup), ("cutmix", self.cutmix)):
            if not 0 <= alpha < float("inf"):
                raise ConfigError(
                    f"augment: {name}={alpha} is not an alpha of a Beta distribution",
                    try_="0 to turn it off, 0.2 for a little, 1 for much",
                )
        if self.randaugment is not None and not (self.randaugment[0] >= 1 and 0 <= self.randaugment[1] <= 30):
            raise ConfigError(
                f"augment: randaugment={self.randaugment} is out of range",
                try_="(operations, magnitude) such as (2, 9); magnitudes go from 0 to 30",
            )


def augment(images: Tensor, indices: ArrayLike, options: Augment, *, seed: int, epoch: ArrayLike) -> Tensor:
    """Augment (B, C, H, W) uint8 or float images on any device → (B, C, H, W) float32.

    The dataset indices (B,) are on the host. `epoch` is (B,) on the host where a batch crosses the end of an epoch.
    """
    images = _scale(images)
    if isinstance(indices, Tensor) and indices.device.type != "cpu":
        raise ConfigError(
            f"augment needs the images' indices on the CPU, not on {indices.device}: reading them back "
            "would stall the device",
            try_="the indices as the loader returned them",
        )
    rows = np.asarray(indices)
    if rows.shape != images.shape[:1]:
        raise SizeError(f"augment needs the index of each of {len(images)} images, not {rows.shape} indices")
    if options.randaugment is not None:
        count, magnitude = options.randaugment
        size = images.shape[2], images.shape[3]
        drawn = randaugment.draw_operations(rows, count, seed=seed, epoch=epoch)
        matrices = randaugment.affine_maps(drawn, magnitude, size)
        images = sample(images, matrices, randaugment.cutout_boxes(drawn, magnitude, size))
        images = randaugment.apply_color_operations(images, drawn, magnitude)
    return erase(images, rows, options.erase, seed=seed, epoch=epoch) if options.erase else images


def erase(images: Tensor, indices: ArrayLike, share: float, *, seed: int, epoch: ArrayLike) -> Tensor:
    """Paint a box of one random colour over a share of the images; the paper's noise needs a draw for every pixel."""
    size = images.shape[2], images.shape[3]
    draws = uniform(seed, epoch, indices, "erase", 5 + images.shape[1])
    colours = draws[:, 5:]  # (B, C)
    boxes = random_boxes(draws[:, 1:5], size, area=ERASED_AREA, aspect=ERASED_ASPECT)
    boxes = boxes * (draws[:, :1] < share)  # an empty box where nothing is erased
    return torch.where(
        box_masks(boxes, size, images.device), to_device(colours, images.device)[:, :, None, None], images
    )


def mix(images: Tensor, targets: Tensor, options: Augment, *, seed: int, step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Mix each image, and its (B, K) class shares, with the image before it, by mixup or CutMix.

    Float images may be normalised already. Batches are in random order, so the neighbour is a random partner.
    """
    if not options.mixup and not options.cutmix:
        return images, targets
    if targets.ndim != 2 or len(targets) != len(images) or not targets.is_floating_point():
        raise SizeError(
            f"mixing {len(images)} images needs a share for each class, not {targets.dtype} targets of "
            f"shape {tuple(targets.shape)}",
            try_="one-hot targets as floats, (images, classes)",
        )
    images = _scale(images)
    random = np.random.default_rng([zlib.crc32(b"mix"), *(word % 2**64 for word in (seed, step, rank))])
    if options.cutmix and not (options.mixup and random.random() < 0.5):
        images, kept = _cutmix(images, random.beta(options.cutmix, options.cutmix), random)
    else:
        kept = random.beta(options.mixup, options.mixup)
        kept = max(kept, 1 - kept)  # as in big_vision: the same mixtures, but the first image keeps the larger share
        images = torch.lerp(images.roll(1, 0), images, kept)
    return images, torch.lerp(targets.roll(1, 0), targets, kept)


def _cutmix(images: Tensor, kept: float, random: np.random.Generator) -> tuple[Tensor, float]:
    """Paste a box of the neighbour, clipped at the border (Yun et al. 2019); return also the share that is kept."""
    height, width = images.shape[2:]
    reach = (1 - kept) ** 0.5 / 2
    y, x = random.random(2)
    top, bottom = (round(min(max(y + sign * reach, 0), 1) * height) for sign in (-1, 1))
    left, right = (round(min(max(x + sign * reach, 0), 1) * width) for sign in (-1, 1))
    pasted = images.clone()
    pasted[:, :, top:bottom, left:right] = images[:, :, top:bottom, left:right].roll(1, 0)
    return pasted, 1 - (bottom - top) * (right - left) / (height * width)


def _scale(images: Tensor) -> Tensor:
    if images.ndim != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise SizeError(
            f"augmentation takes a batch of images, not {images.dtype} of shape {tuple(images.shape)}",
            try_="(images, channels, height, width), uint8 or float in 0 … 1",
        )
    return images / 255 if images.dtype == torch.uint8 else images.float()
