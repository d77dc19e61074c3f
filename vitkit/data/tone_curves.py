"""RandAugment's tone curves: operations that map each pixel value, as look-up tables of 256 entries per channel.

Five tables are the same for every image. Three depend on its histogram: PIL's autocontrast, equalize and contrast.
Images are rounded to 256 levels on the way in, as in the originals, but not on the way out.

Shapes: n images, C channels, (H, W) the size of an image.
"""

import functools

import numpy as np
import torch
from torch import Tensor

HISTOGRAM_CURVES = ("AutoContrast", "Equalize", "Contrast")
CURVES = (*HISTOGRAM_CURVES, "Invert", "Posterize", "Solarize", "SolarizeAdd", "Brightness")
LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R 601, as in PIL


def apply_curves(images: Tensor, operations: Tensor, ends: list[int], tables: Tensor, magnitude: float) -> Tensor:
    """Apply its curve to each of (n, C, H, W) images, which are sorted by operation.

    `operations` (n,) are indices into CURVES, `ends` (host) the number of images up to and including each of
    HISTOGRAM_CURVES, `tables` is fixed_curves(magnitude) on the device.
    """
    # one kernel multiplies and adds; truncation to integers then gives the nearest levels
    levels = torch.add(torch.tensor(0.5), images, alpha=255).long()  # (n, C, H, W)
    autocontrast_end, equalize_end, contrast_end = ends
    curves = tables.index_select(0, operations[contrast_end:])[:, None].expand(-1, images.shape[1], -1)  # (…, C, 256)
    if contrast_end:
        counts, ramp = histograms(levels[:contrast_end]), tables[-1]
        curves = torch.cat(
            [
                autocontrast(counts[:autocontrast_end], ramp),
                equalize(counts[autocontrast_end:equalize_end], ramp),
                contrast(counts[equalize_end:], ramp, images[0, 0].numel(), magnitude),
                curves,
            ]
        )
    return curves.gather(2, levels.flatten(2)).view_as(images)


@functools.cache
def fixed_curves(magnitude: float) -> np.ndarray:
    """Return (9, 256): a row for each of CURVES, zeros for HISTOGRAM_CURVES, and the identity ramp as the last."""
    levels, strength = np.arange(256), magnitude / 10
    step = 1 << (8 - min(int(strength * 4), 8))  # keeps the 0 … 4 highest bits up to magnitude 10, all 8 from 20 on
    curves = {
        "Invert": 255 - levels,
        "Posterize": levels // step * step,
        "Solarize": np.where(levels < int(strength * 256), levels, 255 - levels),  # everything at 0, nothing from 10 on
        "SolarizeAdd": np.where(levels < 128, np.minimum(levels + int(strength * 110), 255), levels),
        "Brightness": np.minimum(levels * enhancement_factor(magnitude), 255),
    }
    return np.stack([*(curves.get(name, np.zeros(256)) for name in CURVES), levels]).astype(np.float32) / 255


def histograms(levels: Tensor) -> Tensor:
    """Count the pixels of each level: (n, C, H, W) → (n, C, 256).

    Each column of pixels is counted separately, then summed: on a flat background, all pixels would otherwise be added
    to one counter in turn.
    """
    n, channels, _, width = levels.shape
    counts = torch.zeros(n, channels, 256, width, dtype=torch.int32, device=levels.device)
    counts.scatter_add_(2, levels, torch.ones((), dtype=torch.int32, device=levels.device).expand_as(levels))
    return counts.sum(3, dtype=torch.int32)


def autocontrast(counts: Tensor, ramp: Tensor) -> Tensor:
    """Map the darkest level that occurs to black and the lightest to white; a flat channel stays."""
    present = counts > 0
    low = torch.where(present, ramp, ramp[-1]).amin(2, keepdim=True)
    high = torch.where(present, ramp, ramp[0]).amax(2, keepdim=True)
    return torch.where(high > low, (ramp - low) / (high - low), ramp)  # out of range only at levels without pixels


def equalize(counts: Tensor, ramp: Tensor) -> Tensor:
    """Equalize the histogram by PIL's rule, integer division included."""
    below = counts.cumsum(2) - counts
    step = (below * (counts > 0)).amax(2, keepdim=True) // 255  # of all pixels but the lightest level's: (n, C, 1)
    curve = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255) / 255
    return torch.where(step > 0, curve, ramp)  # with fewer than 255 pixels to spread, the image stays


def contrast(counts: Tensor, ramp: Tensor, pixels: int, magnitude: float) -> Tensor:
    """Blend the image's mean grey with its own levels, extrapolating past factor 1."""
    means = (counts * ramp).sum(2, keepdim=True) / pixels  # (n, C, 1)
    return torch.lerp(luminance(means), ramp, enhancement_factor(magnitude)).clamp_(0, 1).expand_as(counts)


def enhancement_factor(magnitude: float) -> float:
    """Return the factor of PIL's enhancers: 0 gives the degenerate image (grey, black, smooth), 1 the image itself."""
    return 0.1 + 1.8 * magnitude / 10


def luminance(images: Tensor) -> Tensor:
    """Return the luminance (n, 1, …) of (n, C, …); the plain mean where the channels are not red, green and blue."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    return (red * LUMINANCE[0]).add_(green, alpha=LUMINANCE[1]).add_(blue, alpha=LUMINANCE[2])
