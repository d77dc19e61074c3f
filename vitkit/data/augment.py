"""Augmentation of whole batches where the training step runs: crop, flip, RandAugment, erasing; then mixup or cutmix.

What happens to a picture is a function of (seed, epoch, its index), what happens between pictures of (seed, step,
rank): the same in any batch, with any number of workers, and after a resume. Both are drawn on the host, where the
indices are; the device gets small tables and is never waited for.

Shapes: B pictures, C channels, K classes. Values are 0 … 1, before normalisation; uint8 is scaled to that first.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vitkit.data import randaugment
from vitkit.data.boxes import Range, Size, draw_boxes, inside, send
from vitkit.data.draws import uniform
from vitkit.data.warp import crop_map, flip_map, sample
from vitkit.errors import ConfigError, SizeError

ERASED_AREA, ERASED_ASPECT = (0.02, 1 / 3), (0.3, 1 / 0.3)  # Zhong et al. 2020, section 5.2


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Everything is off unless asked for."""

    crop: Range | None = None  # least and greatest share of the area to keep
    aspect: Range = (3 / 4, 4 / 3)  # width / height of a crop
    flip: float = 0.0  # the share of pictures mirrored
    randaugment: tuple[int, float] | None = None  # how many operations, and their magnitude (10 is much)
    erase: float = 0.0  # the share of pictures with a box painted over
    mixup: float = 0.0  # alpha of the Beta distribution; 0 is off
    cutmix: float = 0.0  # likewise; with both, each batch gets one or the other

    def __post_init__(self) -> None:
        for name, range_, most in (("crop", self.crop, 1.0), ("aspect", self.aspect, float("inf"))):
            if range_ is not None and not 0 < range_[0] <= range_[1] <= most:
                raise ConfigError(
                    f"augment: {name}={range_} is not a range",
                    try_=f"{name}=(least, greatest), above 0" + (" and up to 1" if most == 1 else ""),
                )
        for name, share in (("flip", self.flip), ("erase", self.erase)):
            if not 0 <= share <= 1:
                raise ConfigError(f"augment: {name}={share} is not a share of the pictures", try_="0 … 1")
        for name, alpha in (("mixup", self.mixup), ("cutmix", self.cutmix)):
            if not 0 <= alpha < float("inf"):
                raise ConfigError(
                    f"augment: {name}={alpha} is no alpha of a Beta distribution",
                    try_="0 to leave it out, 0.2 for a little, 1 for much",
                )
        if self.randaugment is not None and not (self.randaugment[0] >= 1 and 0 <= self.randaugment[1] <= 30):
            raise ConfigError(
                f"augment: randaugment={self.randaugment} is out of range",
                try_="(operations, magnitude) such as (2, 9); magnitudes go from 0 to 30",
            )


def augment(images: Tensor, indices: ArrayLike, how: Augment, *, seed: int, epoch: ArrayLike) -> Tensor:
    """(B, C, H, W) uint8 or float, on any device, and dataset indices (B,) on the host → (B, C, H, W) float32.

    `epoch` is (B,) on the host where a batch runs over the end of an epoch.
    """
    images = _unit(images)
    if isinstance(indices, Tensor) and indices.device.type != "cpu":
        raise ConfigError(
            f"augment needs the pictures' indices on the CPU, not on {indices.device}: reading them back "
            "would stall the device",
            try_="the indices as the loader gave them",
        )
    pictures = np.asarray(indices)
    if pictures.shape != images.shape[:1]:
        raise SizeError(f"augment needs the index of each of {len(images)} pictures, not {pictures.shape} indices")
    if how.randaugment is None:
        images = _move(images, pictures, how, seed=seed, epoch=epoch)
    else:
        count, magnitude = how.randaugment
        drawn = randaugment.draw(pictures, count, seed=seed, epoch=epoch)
        moved = randaugment.movement(drawn, magnitude, _size(images))
        holes = randaugment.holes(drawn, magnitude, _size(images))
        images = _move(images, pictures, how, moved, holes, seed=seed, epoch=epoch)
        images = randaugment.recolour(images, drawn, magnitude)
    return erase(images, pictures, how.erase, seed=seed, epoch=epoch) if how.erase else images


def _move(
    images: Tensor,
    indices: np.ndarray,
    how: Augment,
    moved: np.ndarray | None = None,
    holes: np.ndarray | None = None,
    *,
    seed: int,
    epoch: ArrayLike,
) -> Tensor:
    """Crop, flip and RandAugment's movements (B, 3, 3) and cut-outs (B, N, 4), sampled once."""
    size = _size(images)
    flipped = uniform(seed, epoch, indices, "flip", 1)[:, 0] < how.flip
    if how.crop is None and moved is None:
        if not how.flip:
            return images
        # not sampled, which would blur by a rounding error
        return torch.where(send(flipped, images.device)[:, None, None, None], images.flip(3), images)
    frames = np.tile([0.0, 0.0, size[1], size[0]], (len(indices), 1))
    if how.crop is not None:
        frames = draw_boxes(uniform(seed, epoch, indices, "crop", 4), size, area=how.crop, aspect=how.aspect)
    maps = crop_map(frames, size) @ flip_map(flipped, size)
    return sample(images, maps) if moved is None else sample(images, maps @ moved, frames, holes)


def erase(images: Tensor, indices: ArrayLike, share: float, *, seed: int, epoch: ArrayLike) -> Tensor:
    """Random erasing: a box of one random colour; the paper's noise would need a draw for every pixel."""
    size = _size(images)
    draws = uniform(seed, epoch, indices, "erase", 5 + images.shape[1])
    colours = draws[:, 5:]  # (B, C)
    boxes = draw_boxes(draws[:, 1:5], size, area=ERASED_AREA, aspect=ERASED_ASPECT)
    boxes = boxes * (draws[:, :1] < share)  # an empty box where nothing is to be erased
    return torch.where(inside(boxes, size, images.device), send(colours, images.device)[:, :, None, None], images)


def mix(images: Tensor, targets: Tensor, how: Augment, *, seed: int, step: int, rank: int) -> tuple[Tensor, Tensor]:
    """(B, C, H, W) and (B, K) class shares → the same shapes, each picture mixed with the one before it.

    Normalised images are welcome too, as floats. Batches are in random order, so the neighbour is a random partner.
    """
    if not how.mixup and not how.cutmix:
        return images, targets
    if targets.ndim != 2 or len(targets) != len(images) or not targets.is_floating_point():
        raise SizeError(
            f"mixing {len(images)} pictures needs a share for each class, not {targets.dtype} targets of "
            f"shape {tuple(targets.shape)}",
            try_="one-hot targets as floats, (pictures, classes)",
        )
    images = _unit(images)
    random = np.random.default_rng([zlib.crc32(b"mix"), *(word % 2**64 for word in (seed, step, rank))])
    if how.cutmix and not (how.mixup and random.random() < 0.5):
        images, kept = _paste(images, random.beta(how.cutmix, how.cutmix), random)
    else:
        kept = random.beta(how.mixup, how.mixup)
        kept = max(kept, 1 - kept)  # as in big_vision: the same mixtures, but a picture keeps its place
        images = torch.lerp(images.roll(1, 0), images, kept)
    return images, torch.lerp(targets.roll(1, 0), targets, kept)


def _paste(images: Tensor, kept: float, random: np.random.Generator) -> tuple[Tensor, float]:
    """CutMix (Yun et al. 2019): a box of the neighbour, cut off at the border, and the share that is truly kept."""
    height, width = images.shape[2:]
    reach = (1 - kept) ** 0.5 / 2
    y, x = random.random(2)
    top, bottom = (round(min(max(y + way * reach, 0), 1) * height) for way in (-1, 1))
    left, right = (round(min(max(x + way * reach, 0), 1) * width) for way in (-1, 1))
    pasted = images.clone()
    pasted[:, :, top:bottom, left:right] = images[:, :, top:bottom, left:right].roll(1, 0)
    return pasted, 1 - (bottom - top) * (right - left) / (height * width)


def _unit(images: Tensor) -> Tensor:
    if images.ndim != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise SizeError(
            f"augmentation takes a batch of pictures, not {images.dtype} of shape {tuple(images.shape)}",
            try_="(pictures, channels, height, width), uint8 or float in 0 … 1",
        )
    return images / 255 if images.dtype == torch.uint8 else images.float()


def _size(images: Tensor) -> Size:
    return images.shape[2], images.shape[3]
