"""Weights and activations in bf16: half the bytes, and twice the products or more where the machine has the
instructions. The logits are computed in float32, so that probabilities keep their digits.

Shapes: B pictures.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.model.build import Model

SIZES = (1, 8, 64)  # batches that are compiled for; others are filled up to the next, and larger ones divided


class Bf16(nn.Module):
    """A copy of the model; images in float32, logits in float32."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).to(torch.bfloat16)
        head: Any = self.model.head
        head.logits = nn.Sequential(_Float32(), head.logits.float())

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images.to(torch.bfloat16))
        return logits


class _Float32(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()


class Compiled(nn.Module):
    """A compiled model that meets a few batch sizes only, each compiled at once, before anybody waits for an answer."""

    def __init__(self, model: nn.Module, example: Tensor, sizes: tuple[int, ...] = SIZES) -> None:
        import torch._dynamo  # a second to import, for those who compile

        super().__init__()
        self.sizes = sizes
        self.compiled = torch.compile(model, dynamic=False, fullgraph=True)
        # torch stops compiling a function after 8 times, and counts all models of a process together
        with torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=1000):
            for size in sizes:
                self(example[:1].expand(size, -1, -1, -1).contiguous())

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self._filled_up(part) for part in images.split(self.sizes[-1])])

    def _filled_up(self, images: Tensor) -> Tensor:
        count = len(images)
        size = next(size for size in self.sizes if size >= count)
        if size > count:
            images = torch.cat([images, images.new_zeros(size - count, *images.shape[1:])])
        logits: Tensor = self.compiled(images)
        return logits[:count]
