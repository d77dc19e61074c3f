"""Multi-head self-attention (paper appendix A, eq. 5-8).

`F.scaled_dot_product_attention` never forms the attention weights. `attention_weights` is the one place that does, for
analyses; tests hold the two equal.

Shapes: B batch, T tokens, D width, H heads, d = D / H.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.initialise import linear
from vitkit.model.positions import InsideAttention
from vitkit.model.rotary import RotaryPositions


class MaskedAttention(NamedTuple):
    """Attention that is restricted, beside positions that may live inside it."""

    mask: Tensor  # (B, 1, T, T), added to the scores: 0, or -inf where a token does not attend to another
    positions: RotaryPositions | InsideAttention | None


AttentionPositions = InsideAttention | RotaryPositions | MaskedAttention  # what acts inside attention


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


class PartlyBiasedLinear(nn.Linear):
    """A projection to query, key and value of which not all have a bias; `bias` holds those that exist, in a row."""

    def __init__(self, *, width: int, biased: tuple[bool, bool, bool]):
        super().__init__(width, 3 * width)
        self.biased = biased
        self.bias = nn.Parameter(torch.zeros(sum(biased) * width))

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        return F.linear(x, self.weight, complete_bias(self))  # (B, T, 3·D)


def complete_bias(qkv: nn.Linear) -> Tensor:
    """Return the bias of a projection to query, key and value (3·D,), with zeros where it has none."""
    if isinstance(qkv, PartlyBiasedLinear):
        parts, zeros = iter(qkv.bias.chunk(sum(qkv.biased))), qkv.bias.new_zeros(qkv.in_features)
        return torch.cat([next(parts) if one else zeros for one in qkv.biased])
    return qkv.weight.new_zeros(qkv.out_features) if qkv.bias is None else qkv.bias


class SelfAttention(nn.Module):
    def __init__(self, *, width: int, heads: int, biased: tuple[bool, bool, bool] = (True, True, True)):
        """`biased` says which of query, key and value have a bias."""
        super().__init__()
        self.heads = heads
        some = any(biased) and not all(biased)
        self.qkv = (
            PartlyBiasedLinear(width=width, biased=biased) if some else linear(width, 3 * width, bias=all(biased))
        )
        for part in self.qkv.weight.chunk(3):  # query, key and value are three Xavier layers in one
            nn.init.xavier_uniform_(part)
        self.out = linear(width, width)

    def forward(self, x: Tensor, positions: AttentionPositions | None = None) -> Tensor:  # (B, T, D)
        query, key, value = split_heads(self.qkv(x), self.heads)  # (B, H, T, d) each
        query, key, bias = apply_positions(query, key, positions)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)  # (B, H, T, d)
        return self.out(mixed.transpose(1, 2).flatten(2))  # (B, T, D)

    def weights(self, x: Tensor, positions: AttentionPositions | None = None) -> Tensor:
        """Return the attention weights that `forward` uses, recomputed from its input: (B, H, T, T)."""
        query, key, _ = split_heads(self.qkv(x), self.heads)
        return attention_weights(*apply_positions(query, key, positions))


def apply_positions(
    query: Tensor, key: Tensor, positions: AttentionPositions | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return query and key, turned by rotary positions, and what relative positions or a mask add to the scores."""
    if isinstance(positions, MaskedAttention):
        query, key, bias = apply_positions(query, key, positions.positions)
        mask = positions.mask.to(query.dtype)
        return query, key, mask if bias is None else mask + bias
    if isinstance(positions, RotaryPositions):
        return *positions(query, key), None
    return query, key, None if positions is None else positions(query)
