"""RandAugment's operations that turn a shade into another shade, as tables of 256 entries for each channel.

Five tables are the same for every picture. Three depend on how often a shade occurs in it: PIL's autocontrast, equalize
and contrast. Pictures are rounded to 256 shades on the way in, which is what the originals work on, not on the way out.

Shapes: n pictures, C channels, (H, W) the size of a picture.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

COUNTING = ("AutoContrast", "Equalize", "Contrast")
CURVES = (*COUNTING, "Invert", "Posterize", "Solarize", "SolarizeAdd", "Brightness")
LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R 601, as in PIL


def apply_curves(images: Tensor, kinds: Tensor, ends: list[int], tables: Tensor, magnitude: float) -> Tensor:
    """(n, C, H, W) → the same shape. The pictures are sorted by operation.

    `kinds` (n,) says where in CURVES a picture's operation is, `ends` (host) how many pictures come up to and with each
    of COUNTING, `tables` is fixed_curves(magnitude) on the device.
    """
    # One kernel multiplies and adds; the whole numbers that follow are the nearest shades
    shades = torch.add(torch.tensor(0.5), images, alpha=255).long()  # (n, C, H, W)
    stretched, equalized, contrasted = ends
    curves = tables.index_select(0, kinds[contrasted:])[:, None].expand(-1, images.shape[1], -1)  # (…, C, 256)
    if contrasted:
        counts, ramp = count(shades[:contrasted]), tables[-1]
        curves = torch.cat(
            [
                autocontrast(counts[:stretched], ramp),
                equalize(counts[stretched:equalized], ramp),
                contrast(counts[equalized:], ramp, images[0, 0].numel(), magnitude),
                curves,
            ]
        )
    return curves.gather(2, shades.flatten(2)).view_as(images)


@functools.cache
def fixed_curves(magnitude: float) -> np.ndarray:
    """(9, 256): a row for each of CURVES, zeros for those that count first, and the ramp from 0 to 1 as the last."""
    shades, level = np.arange(256), magnitude / 10
    merged = 1 << (8 - min(int(level * 4), 8))  # keeps the 0 … 4 highest bits up to magnitude 10, all 8 from 20 on
    curves = {
        "Invert": 255 - shades,
        "Posterize": shades // merged * merged,
        "Solarize": np.where(shades < int(level * 256), shades, 255 - shades),  # everything at 0, nothing from 10 on
        "SolarizeAdd": np.where(shades < 128, np.minimum(shades + int(level * 110), 255), shades),
        "Brightness": np.minimum(shades * factor(magnitude), 255),
    }
    return np.stack([*(curves.get(name, np.zeros(256)) for name in CURVES), shades]).astype(np.float32) / 255


def count(shades: Tensor) -> Tensor:
    """(n, C, H, W) → (n, C, 256): how many pixels have each shade.

    First for each column of pixels, then summed: on a flat background all pixels would be added to one number in turn.
    """
    n, channels, _, width = shades.shape
    counts = torch.zeros(n, channels, 256, width, dtype=torch.int32, device=shades.device)
    counts.scatter_add_(2, shades, torch.ones((), dtype=torch.int32, device=shades.device).expand_as(shades))
    return counts.sum(3, dtype=torch.int32)


def autocontrast(counts: Tensor, ramp: Tensor) -> Tensor:
    """The darkest shade that occurs becomes black, the lightest white; a flat channel stays."""
    present = counts > 0
    low = torch.where(present, ramp, ramp[-1]).amin(2, keepdim=True)
    high = torch.where(present, ramp, ramp[0]).amax(2, keepdim=True)
    return torch.where(high > low, (ramp - low) / (high - low), ramp)  # out of range only where no pixel looks


def equalize(counts: Tensor, ramp: Tensor) -> Tensor:
    """Shades become about equally frequent; PIL's rule, whole-number division included."""
    below = counts.cumsum(2) - counts
    step = (below * (counts > 0)).amax(2, keepdim=True) // 255  # of all pixels but the lightest shade's: (n, C, 1)
    curve = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255) / 255
    return torch.where(step > 0, curve, ramp)  # fewer than 255 pixels to spread: left as they are


def contrast(counts: Tensor, ramp: Tensor, pixels: int, magnitude: float) -> Tensor:
    """From the picture's mean grey towards and past its own shades."""
    means = (counts * ramp).sum(2, keepdim=True) / pixels  # (n, C, 1)
    return torch.lerp(luminance(means), ramp, factor(magnitude)).clamp_(0, 1).expand_as(counts)


def factor(magnitude: float) -> float:
    """Of PIL's enhancers: 0 is the plain picture (grey, black, smooth), 1 the picture itself, and beyond."""
    return 0.1 + 1.8 * magnitude / 10


def luminance(images: Tensor) -> Tensor:
    """(n, C, …) → (n, 1, …); the plain mean where the channels are not red, green and blue."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    return (red * LUMINANCE[0]).add_(green, alpha=LUMINANCE[1]).add_(blue, alpha=LUMINANCE[2])
