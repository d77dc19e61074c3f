"""Stochastic depth: residual branches that are left out at random in training.

Shapes: B batch, T tokens, D width.
"""

import torch
from torch import Tensor


def drop_path(branch: Tensor, rate: float, training: bool, lines: int = 1) -> Tensor:
    """Drop the whole residual branch for some images and scale it up for the others.

    (B·lines, T, D), where the lines of an image stand together and are dropped together.
    """
    if not training or rate == 0:
        return branch
    kept = torch.rand(branch.shape[0] // lines, 1, 1, device=branch.device) >= rate
    return branch * kept.repeat_interleave(lines, dim=0) / (1 - rate)
