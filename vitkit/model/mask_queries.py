"""Mask queries (EoMT: Kerssies et al., CVPR 2025, Your ViT is Secretly an Image Segmentation Model).

Learned queries join the tokens for the last blocks. Each then says of which class it is, or of none, and which pixels
are its own: the product of its mask embedding with the upscaled features of every patch. In training, queries attend to
the patches of their own mask only, with a probability that falls to 0, so that inference is a plain ViT.

Shapes: B batch, T tokens (special ones first), N = h·w patches, Q queries, D width, K classes, h' x w' upscaled grid.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.heads import zero_linear
from vitkit.model.segmenter_config import SegmenterConfig


class QueryPrediction(NamedTuple):
    """The classes and the masks of all queries, as logits."""

    classes: Tensor  # (B, Q, K + 1), the last one: no class
    masks: Tensor  # (B, Q, h', w')

    def scores(self) -> Tensor:
        """Return how much each class claims each pixel: (B, K, h', w'), in float32 at least."""
        wide = torch.promote_types(self.masks.dtype, torch.float32)
        classes, masks = self.classes.to(wide).softmax(dim=-1)[..., :-1], self.masks.to(wide).sigmoid()
        return torch.einsum("bqk,bqhw->bkhw", classes, masks)


class MaskQueries(nn.Module):
    """The queries, and what reads their encoded state."""

    logits: nn.Module

    def __init__(self, config: SegmenterConfig):
        super().__init__()
        width = config.width
        self.queries = nn.Parameter(nn.init.normal_(torch.empty(config.queries, width)))
        self.logits = zero_linear(width, config.classes + 1)
        layers = [nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)]
        self.mask_mlp = nn.Sequential(*layers)
        self.upscale = nn.Sequential(*(Upscale(width) for _ in range(config.upscalings)))

    def join(self, x: Tensor) -> Tensor:
        """Put the queries in front of the tokens: (B, T, D) → (B, Q + T, D)."""
        return torch.cat([self.queries.to(x.dtype).expand(x.shape[0], -1, -1), x], dim=1)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> QueryPrediction:  # (B, Q + T, D), normed
        queries, patches = x[:, : len(self.queries)], x[:, -grid[0] * grid[1] :]
        features = self.upscale(patches.transpose(1, 2).unflatten(2, grid))  # (B, D, h', w')
        masks = self.mask_mlp(queries) @ features.flatten(2)  # (B, Q, h'·w')
        return QueryPrediction(self.logits(queries), masks.unflatten(2, features.shape[2:]))

    def replace_classes(self, config: SegmenterConfig) -> None:
        self.logits = zero_linear(config.width, config.classes + 1)


class Upscale(nn.Module):
    """Double the resolution of features: a transposed convolution, then one by channel, normed over the channels."""

    def __init__(self, width: int):
        super().__init__()
        self.transposed = nn.ConvTranspose2d(width, width, kernel_size=2, stride=2)
        self.depthwise = nn.Conv2d(width, width, kernel_size=3, padding=1, groups=width, bias=False)
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, features: Tensor) -> Tensor:  # (B, D, h, w)
        features = self.depthwise(F.gelu(self.transposed(features)))  # (B, D, 2·h, 2·w)
        return self.norm(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@torch.no_grad()
def attend_to_masks(masks: Tensor, probability: Tensor, *, grid: tuple[int, int], special: int) -> Tensor:
    """Return what to add to attention scores (B, 1, Q + T, Q + T) so that queries see the patches of their masks only.

    `masks` (B, Q, h', w') are logits. Each query is restricted with this probability, drawn from torch's generator;
    queries and special tokens are always seen.
    """
    b, count = masks.shape[:2]
    inside = F.interpolate(masks.float(), grid, mode="bilinear").flatten(2) > 0  # (B, Q, N)
    free = torch.rand(b, count, device=masks.device) > probability
    hidden = torch.zeros(inside.shape, dtype=masks.dtype, device=masks.device)
    hidden = hidden.masked_fill(~(inside | free[..., None]), -torch.inf)
    before, below = count + special, special + inside.shape[2]
    return F.pad(hidden, (before, 0, 0, below))[:, None]
