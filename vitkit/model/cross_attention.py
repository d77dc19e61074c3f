"""Attention from one set of tokens to another, and the block around it (Lee et al. 2019, Set Transformer, eq. 6-7).

    MAB(X, Y) = LayerNorm(H + rFF(H)),  H = LayerNorm(X + Multihead(X, Y, Y))

That is a post-norm block, norm="post" here. With norm="pre", LayerNorm stands before attention and MLP, on X and on Y,
as in ViT's own blocks. rFF is the MLP of the model: the paper leaves it open, the authors' code has one layer and ReLU.

Shapes: B batch, Q queries, S tokens of the context, D width, H heads, d = D / H.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.attention import attention_weights
from vitkit.model.capture import Seen
from vitkit.model.config import ViTConfig
from vitkit.model.drop_path import drop_path
from vitkit.model.initialise import linear
from vitkit.model.layer_scale import build_layer_scale
from vitkit.model.mlp import build_mlp


class CrossAttention(nn.Module):
    def __init__(self, *, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = linear(width, width)
        self.key_value = linear(width, 2 * width)
        for part in self.key_value.weight.chunk(2):  # key and value are two Xavier layers in one
            nn.init.xavier_uniform_(part)
        self.out = linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:  # (B, Q, D) or, alike for all images, (Q, D); (B, S, D)
        query, key, value = self._split(x, context)
        mixed = F.scaled_dot_product_attention(query, key, value)  # (B, H, Q, d)
        return self.out(mixed.transpose(1, 2).flatten(2))  # (B, Q, D)

    def weights(self, x: Tensor, context: Tensor) -> Tensor:
        """Return the attention weights that `forward` uses, recomputed from its input: (B, H, Q, S)."""
        query, key, _ = self._split(x, context)
        return attention_weights(query, key)

    def _split(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query = self.query(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2)  # (B, H, Q, d) or (H, Q, d)
        pairs = self.key_value(context).unflatten(-1, (2, self.heads, -1))
        key, value = pairs.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, S, d) each
        return query.expand(key.shape[0], -1, -1, -1), key, value


class CrossBlock(nn.Module):
    """The paper's MAB: x attends to a context, then an MLP, each with a residual connection to x."""

    mlp: Any  # Mlp or SwiGlu

    def __init__(self, config: ViTConfig, *, drop: float = 0.0, context_normed: bool = False):
        """`context_normed` says that the context has passed a LayerNorm already."""
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.attention_norm = nn.LayerNorm(config.width, eps=config.eps)
        own_norm = self.pre_norm and not context_normed
        self.context_norm = nn.LayerNorm(config.width, eps=config.eps) if own_norm else nn.Identity()
        self.attention = CrossAttention(width=config.width, heads=config.heads)
        self.attention_scale = build_layer_scale(config.width, config.layer_scale)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.eps)
        self.mlp = build_mlp(config, dropout=config.dropout)
        self.mlp_scale = build_layer_scale(config.width, config.layer_scale)
        self.dropout = nn.Dropout(config.dropout)
        self.drop = drop

    def forward(self, x: Tensor, context: Tensor, seen: Seen, name: str) -> Tensor:
        """(B, Q, D) or, alike for all images, (Q, D); (B, S, D) → (B, Q, D)."""
        context = self.context_norm(context)
        normed = self.attention_norm(x) if self.pre_norm else x
        if f"{name}/attention" in seen:
            seen[f"{name}/attention"] = self.attention.weights(normed, context)
        x = x + self.regularise(self.attention_scale(self.attention(normed, context)))
        if self.pre_norm:
            return x + self.regularise(self.mlp_scale(self.mlp(self.mlp_norm(x))))
        x = self.attention_norm(x)
        return self.mlp_norm(x + self.regularise(self.mlp_scale(self.mlp(x))))

    def regularise(self, branch: Tensor) -> Tensor:
        return drop_path(self.dropout(branch), self.drop, self.training)
