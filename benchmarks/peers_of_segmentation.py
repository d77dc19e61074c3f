"""A plain U-Net (Ronneberger et al. 2015) with batch normalisation, as wide as a given number of multiply-adds."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 5


class UNet(nn.Module):
    """Five levels of two 3x3 convolutions each, halved by pooling on the way down and joined on the way up."""

    def __init__(self, classes: int, width: int):
        super().__init__()
        widths = [width * 2**level for level in range(LEVELS)]
        self.down = nn.ModuleList(
            double(3 if level == 0 else widths[level - 1], widths[level]) for level in range(LEVELS)
        )
        self.widen = nn.ModuleList(
            nn.ConvTranspose2d(widths[level + 1], widths[level], 2, stride=2) for level in range(LEVELS - 1)
        )
        self.up = nn.ModuleList(double(2 * widths[level], widths[level]) for level in range(LEVELS - 1))
        self.logits = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        features, x = [], images
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool2d(x, 2))
            features.append(x)
        for level in reversed(range(LEVELS - 1)):
            x = self.up[level](torch.cat([self.widen[level](x), features[level]], dim=1))
        scores: Tensor = self.logits(x)
        return scores


def double(channels: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs in (channels, width):
        layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def unet_of_cost(
    classes: int, size: tuple[int, int], macs: float, count: Callable[[nn.Module, tuple[int, int]], float]
) -> UNet:
    """Return the widest U-Net with at most so many multiply-adds, and 4 channels at least."""
    width = 4
    while count(UNet(classes, width + 1), size) <= macs:
        width += 1
    return UNet(classes, width)
