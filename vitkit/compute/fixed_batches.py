"""Batches of any size for a model that meets a few sizes only: what is compiled or recorded for a size is so before
anybody waits for an answer.

Shapes: B pictures.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIZES = (1, 8, 64)  # others are filled up to the next, and larger ones divided


class InSizes(nn.Module):
    def __init__(self, model: nn.Module, example: Tensor, sizes: tuple[int, ...] = SIZES) -> None:
        """`example` is a batch of one picture."""
        super().__init__()
        self.model, self.sizes = model, sizes
        for size in sizes:
            self(example[:1].expand(size, -1, -1, -1).contiguous())

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self._filled_up(part) for part in images.split(self.sizes[-1])])

    def _filled_up(self, images: Tensor) -> Tensor:
        count = len(images)
        size = next(size for size in self.sizes if size >= count)
        if size > count:
            images = torch.cat([images, images.new_zeros(size - count, *images.shape[1:])])
        logits: Tensor = self.model(images)
        return logits[:count]
