"""Colour jitter of a batch: brightness, contrast, saturation and hue, as SSD and Mask2Former train with.

All four are affine in an image's colour, so an image needs one 3 x 3 matrix, whatever the order of the operations, and
no colour space is left and entered again. Contrast is about the mean colour of the image. Values are 0 … 1.

Shapes: B images, C channels.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vitkit.data.random_boxes import to_device
from vitkit.data.stateless_rng import uniform

BRIGHTNESS = 32 / 255  # added or taken away, at most, at strength 1
CONTRAST = SATURATION = 0.5  # the factor is 1 minus this to 1 plus this
HUE = np.deg2rad(18)
LUMA = np.array([0.299, 0.587, 0.114])
# the plane of colours without brightness: rotations of hue turn in it (YIQ's axes, which NTSC defined)
TO_YIQ = np.array([LUMA, [0.595716, -0.274453, -0.321263], [0.211456, -0.522591, 0.311135]])


@dataclass(frozen=True, kw_only=True)
class ColourDraws:
    """The jitter of each image; all on the host."""

    matrices: NDArray[np.float64]  # (B, 3, 3) saturation and hue of RGB
    contrast: NDArray[np.float64]  # (B,) factors
    brightness: NDArray[np.float64]  # (B,) added at the end


def draw_colours(indices: ArrayLike, strength: float, *, seed: int, epoch: ArrayLike) -> ColourDraws:
    """Draw the jitter; each of the four applies to half of the images, independently."""
    draws = uniform(seed, epoch, indices, "colour-jitter", 8).astype(np.float64)
    shift = strength * (2 * draws[:, :4] - 1) * (draws[:, 4:] < 0.5)  # -strength … strength; 0: not applied
    saturation, angle = np.maximum(1 + SATURATION * shift[:, 2], 0), HUE * shift[:, 3]
    cos, sin = saturation * np.cos(angle), saturation * np.sin(angle)
    turned = np.zeros((len(draws), 3, 3))
    turned[:, 0, 0] = 1
    turned[:, 1, 1] = turned[:, 2, 2] = cos
    turned[:, 1, 2], turned[:, 2, 1] = -sin, sin
    return ColourDraws(
        matrices=np.linalg.inv(TO_YIQ) @ turned @ TO_YIQ,
        contrast=np.maximum(1 + CONTRAST * shift[:, 1], 0),
        brightness=BRIGHTNESS * shift[:, 0],
    )


def jitter_colours(images: Tensor, draws: ColourDraws) -> Tensor:
    """Jitter (B, C, height, width); of images that are not RGB only brightness and contrast."""
    if images.shape[1] == 3:
        # not a matrix product, which TF32 would round; three colours are few
        matrices = to_device(draws.matrices, images.device)[..., None, None]  # (B, 3, 3, 1, 1)
        images = torch.stack([(matrices[:, row] * images).sum(dim=1) for row in range(3)], dim=1)
    contrast = to_device(draws.contrast, images.device)[:, None, None, None]
    brightness = to_device(draws.brightness, images.device)[:, None, None, None]
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return ((images - mean) * contrast + mean + brightness).clamp_(0, 1)
