"""Multi-head self-attention (paper appendix A, eq. 5-8).

`F.scaled_dot_product_attention` never forms the attention weights. `attention_weights` is the one place that does, for
analyses; tests hold the two equal.

Shapes: B batch, T tokens, D width, H heads, d = D / H.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.initialise import linear
from vitkit.model.positions import Relative


def attention_weights(query: Tensor, key: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q·k / √d + bias): (B, H, T, d), (B, H, S, d) → (B, H, T, S), each row summing to 1."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias
    # fp32 at least: a row sums hundreds of small numbers
    return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)


def split_heads(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T, 3·D) → query, key and value: (B, H, T, d) each."""
    query, key, value = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return query, key, value


class SelfAttention(nn.Module):
    def __init__(self, *, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = linear(width, 3 * width)
        for part in self.qkv.weight.chunk(3):  # query, key and value are three Xavier layers in one
            nn.init.xavier_uniform_(part)
        self.out = linear(width, width)

    def forward(self, x: Tensor, relative: Relative | None = None) -> Tensor:  # (B, T, D)
        query, key, value = split_heads(self.qkv(x), self.heads)  # (B, H, T, d) each
        bias = relative(query) if relative is not None else None
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)  # (B, H, T, d)
        return self.out(mixed.transpose(1, 2).flatten(2))  # (B, T, D)

    def weights(self, x: Tensor, relative: Relative | None = None) -> Tensor:
        """Return the attention weights that `forward` uses, recomputed from its input: (B, H, T, T)."""
        query, key, _ = split_heads(self.qkv(x), self.heads)
        return attention_weights(query, key, relative(query) if relative is not None else None)
