"""A model as it is, in float32 or in bf16: half the bytes, and twice the products or more where the machine has the
instructions. Logits are computed in float32 either way, so that probabilities keep their digits.

Shapes: B pictures, C channels, K classes, D width.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.model.build import Model


class Whole(nn.Module):
    """The model itself where it is in float32 and to be, a copy otherwise: pictures (B, C, height, width) → logits
    (B, K) in float32."""

    def __init__(self, model: Model, numbers: torch.dtype = torch.bfloat16):
        super().__init__()
        self.model, self.numbers = model, numbers
        if not model.dtype == numbers == torch.float32:
            self.model = copy.deepcopy(model).to(numbers)
        if numbers != torch.float32:
            head: Any = self.model.head
            head.logits = nn.Sequential(_Float32(), head.logits.float())

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images.to(self.numbers))
        return logits

    def represent(self, images: Tensor) -> Tensor:
        """(B, D), float32."""
        _, seen = self.model(images.to(self.numbers), ("representation",))
        return seen["representation"].float()


class _Float32(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()
