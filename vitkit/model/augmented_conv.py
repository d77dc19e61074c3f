"""Attention-augmented convolution (Bello et al. 2019): some output channels of a 3x3 convolution come from attention.

F channels go out: F - υF from the convolution, υF from multi-head attention over the same input, with κF channels of
keys, 2-D relative positions and an output projection. In the first stage that has it, attention runs on a map of half
the side: 3x3 average pooling with stride 2 before, bilinear interpolation after (section 3.2, "layers with the highest
spatial dimensions"). The paper does not say how attention meets the stride of a convolution; here, by the same pooling.

Shapes: B batch, C channels, h x w map of attention, N = h·w, H heads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.attention import attention_weights
from vitkit.model.capture import Seen
from vitkit.model.feature_map_attention import FeatureMapAttention, as_tokens, split
from vitkit.model.initialise import linear
from vitkit.model.relative_grid import RelativeGrid
from vitkit.model.resize_positions import Grid


class AugmentedConv(FeatureMapAttention):
    def __init__(
        self, convolution: nn.Module, *, width: int, channels: tuple[int, int], heads: int, grid: Grid, poolings: int
    ):
        """`channels` are those of the keys and of the values; `grid` is the map that `poolings` poolings leave."""
        super().__init__(grid, heads)
        self.channels, self.poolings = channels, poolings
        self.convolution = convolution
        self.qkv = linear(width, 2 * channels[0] + channels[1], bias=False)
        self.positions = RelativeGrid(grid, channels[0] // heads)
        self.out = linear(channels[1], channels[1], bias=False)

    def forward(self, x: Tensor, seen: Seen, name: str) -> Tensor:
        convolved = self.convolution(x)
        for _ in range(self.poolings):
            x = F.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False)
        query, key, value = split(self.qkv(as_tokens(x)), self.heads, self.channels)  # (B, H, N, ·) each
        bias = self.positions(query, self.grid)
        if f"{name}/attention" in seen:
            seen[f"{name}/attention"] = attention_weights(query, key, bias)  # (B, H, N, N)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        attended = self.out(mixed.transpose(1, 2).flatten(2)).transpose(1, 2).unflatten(2, self.grid)
        if attended.shape[2:] != convolved.shape[2:]:
            attended = F.interpolate(attended, size=convolved.shape[2:], mode="bilinear", align_corners=False)
        return torch.cat([convolved, attended], dim=1)
