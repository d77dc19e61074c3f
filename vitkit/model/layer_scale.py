"""LayerScale (Touvron et al., Going deeper with Image Transformers): a learned factor per channel after each branch."""

import torch
from torch import Tensor, nn


class LayerScale(nn.Module):
    """Multiply a residual branch (…, D) by a vector that starts small, or at 1 in DINOv3."""

    def __init__(self, *, width: int, start: float):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), float(start)))

    def forward(self, branch: Tensor) -> Tensor:
        return branch * self.gamma


def build_layer_scale(width: int, start: float | None) -> LayerScale | nn.Identity:
    return nn.Identity() if start is None else LayerScale(width=width, start=start)
