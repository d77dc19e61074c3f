"""The layers of iGPT: attention over pixels, causal or not, and its norm without a mean (Chen et al. 2020).

Shapes: B batch, N = height·width pixels, n of them, D width, H heads, d = D / H.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.model.attention import attention_weights, split_heads
from vitkit.model.capture import Seen
from vitkit.model.igpt_config import IGPTConfig
from vitkit.model.mlp import Mlp

KVCache = tuple[Tensor, Tensor]  # keys and values of the positions so far: (B, H, N, d) each


class RootMeanSquareNorm(nn.Module):
    """RMSNorm, as in iGPT's code: divide a token by its root mean square, times a gain; no mean, no bias."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D)
        # fp32 at least: a mean of squares needs more bits than bf16 has
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()).to(x.dtype) * self.gain


class PixelAttention(nn.Module):
    """Self-attention over pixels, causal or not."""

    def __init__(self, config: IGPTConfig):
        super().__init__()
        self.heads, self.causal = config.heads, config.causal
        self.qkv = _normal(config.width, 3 * config.width, std=config.width**-0.5)
        self.out = _normal(config.width, config.width, std=(config.width * config.depth) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:  # (B, N, D)
        query, key, value = split_heads(self.qkv(x), self.heads)  # (B, H, N, d) each
        return self._mix(F.scaled_dot_product_attention(query, key, value, is_causal=self.causal))

    def extend(self, x: Tensor, past: KVCache, start: int) -> Tensor:
        """Attend from positions `start` on, x (B, n, D), to all so far; x joins the KV cache `past`.

        Either all positions so far come at once, from 0 on, or one does.
        """
        query, key, value = split_heads(self.qkv(x), self.heads)  # (B, H, n, d) each
        end = start + x.shape[1]
        for stored, new in zip(past, (key, value), strict=True):
            stored[:, :, start:end] = new
        keys, values = (stored[:, :, :end] for stored in past)
        return self._mix(F.scaled_dot_product_attention(query, keys, values, is_causal=x.shape[1] > 1))

    def weights(self, x: Tensor) -> Tensor:
        """Return the attention weights that `forward` uses: (B, H, N, N)."""
        query, key, _ = split_heads(self.qkv(x), self.heads)
        later = torch.full((x.shape[1],) * 2, -math.inf, device=x.device, dtype=x.dtype).triu(1)
        return attention_weights(query, key, later if self.causal else None)

    def _mix(self, mixed: Tensor) -> Tensor:  # (B, H, n, d)
        return self.out(mixed.transpose(1, 2).flatten(2))


class PixelBlock(nn.Module):
    """A pre-norm layer of GPT-2 with iGPT's norm and the logistic GELU."""

    def __init__(self, config: IGPTConfig):
        super().__init__()
        self.attention_norm = RootMeanSquareNorm(config.width, config.eps)
        self.attention = PixelAttention(config)
        self.mlp_norm = RootMeanSquareNorm(config.width, config.eps)
        self.mlp = Mlp(width=config.width, hidden=config.mlp, gelu="quick", dropout=0.0)
        for layer in (self.mlp.up, self.mlp.down):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, seen: Seen, name: str) -> Tensor:  # (B, N, D)
        normed = self.attention_norm(x)
        if f"{name}/attention" in seen:
            seen[f"{name}/attention"] = self.attention.weights(normed)
        x = x + self.dropout(self.attention(normed))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))

    def extend(self, x: Tensor, past: KVCache, start: int) -> Tensor:
        """Compute positions from `start` on, given the keys and values of those before."""
        x = x + self.attention.extend(self.attention_norm(x), past, start)
        return x + self.mlp(self.mlp_norm(x))


def _normal(inputs: int, outputs: int, *, std: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer
