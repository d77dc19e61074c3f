"""A model for inference as it is, cast to float32 or bf16, with logits in float32 either way.

Shapes: B images, C channels, K classes, D width.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.kernels.fuse import fuse
from vitkit.model.build import Model, shared_copy


class Cast(nn.Module):
    """Images (B, C, height, width) → logits (B, K) in float32; in float32 it shares the model's weights."""

    def __init__(self, model: Model, dtype: torch.dtype = torch.bfloat16, *, fused: bool = True):
        super().__init__()
        shares = model.dtype == dtype == torch.float32
        self.model, self.dtype = shared_copy(model) if shares else copy.deepcopy(model).to(dtype), dtype
        if fused:
            fuse(self.model, class_token_only=True)
        if dtype != torch.float32:
            head: Any = self.model.head
            head.logits = nn.Sequential(_Float32(), head.logits.float())

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images.to(self.dtype))
        return logits

    def represent(self, images: Tensor) -> Tensor:
        """Return the input of the logits layer: (B, D), float32."""
        _, seen = self.model(images.to(self.dtype), ("representation",))
        return seen["representation"].float()

    def represent_layers(self, layers: tuple[str, ...], images: Tensor) -> Tensor:
        """Return the features of layers, as a probe reads them, side by side: (B, layers · D), float32."""
        _, seen = self.model(images.to(self.dtype), layers)
        return torch.cat([self.model.pool_layer(layer, seen[layer]).float() for layer in layers], dim=1)


class _Float32(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()
