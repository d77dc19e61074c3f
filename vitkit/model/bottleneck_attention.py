"""BoTNet's attention (Srinivas et al. 2021): all pixels to all, with 2-D relative positions, for a 3x3 convolution.

As in the code of its appendix, no projection follows the heads: the 1x1 convolution of the bottleneck does. Where the
convolution had a stride, 2x2 pixels are averaged after attention.

Shapes: B batch, C channels, h x w feature map, N = h·w, H heads, d = C / H.
"""

import torch.nn.functional as F
from torch import Tensor

from vitkit.model.attention import attention_weights
from vitkit.model.capture import Seen
from vitkit.model.feature_map_attention import FeatureMapAttention, as_map, as_tokens, split, strided_average_pool
from vitkit.model.initialise import linear
from vitkit.model.relative_grid import RelativeGrid
from vitkit.model.resize_positions import Grid


class BottleneckAttention(FeatureMapAttention):
    def __init__(self, *, width: int, heads: int, grid: Grid, stride: int):
        super().__init__(grid, heads)
        self.stride = stride
        self.qkv = linear(width, 3 * width, bias=False)
        self.positions = RelativeGrid(grid, width // heads)

    def forward(self, x: Tensor, seen: Seen, name: str) -> Tensor:  # (B, C, h, w)
        query, key, value = split(self.qkv(as_tokens(x)), self.heads, (x.shape[1], x.shape[1]))  # (B, H, N, d) each
        bias = self.positions(query, self.grid)
        if f"{name}/attention" in seen:
            seen[f"{name}/attention"] = attention_weights(query, key, bias)  # (B, H, N, N)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return strided_average_pool(as_map(mixed, self.grid), self.stride)
