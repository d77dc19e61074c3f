"""Batches of any size through a model that sees a few sizes only, which it compiles or captures before the first call.

Shapes: B images.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SIZES = (1, 8, 64)  # other sizes are padded to the next, and larger batches are split


class PaddedBatches(nn.Module):
    def __init__(self, model: nn.Module, example: Tensor, sizes: tuple[int, ...] = SIZES) -> None:
        """Run the model once for each size; `example` is a batch of one image."""
        super().__init__()
        self.model, self.sizes = model, sizes
        for size in sizes:
            self(example[:1].expand(size, -1, -1, -1).contiguous())

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self._padded(batch) for batch in images.split(self.sizes[-1])])

    def _padded(self, images: Tensor) -> Tensor:
        count = len(images)
        size = next(size for size in self.sizes if size >= count)
        if size > count:
            images = torch.cat([images, images.new_zeros(size - count, *images.shape[1:])])
        logits: Tensor = self.model(images)
        return logits[:count]
