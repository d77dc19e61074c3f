"""Multi-head self-attention (paper appendix A, eq. 5-8), through fused kernels: PyTorch's, and our own in training.

They never form the weights. `attention_weights` is the one place that does, for whoever wants to look;
tests hold the two equal.

Shapes: B batch, T tokens, D width, H heads, d = D / H.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.kernels.attention import attend, attends, mix, split
from vitkit.kernels.dispatch import fusable
from vitkit.kernels.linear import plain, through
from vitkit.model.initialise import linear
from vitkit.model.positions import Relative


def attention_weights(query: Tensor, key: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q·k / √d + bias): (B, H, T, d), (B, H, S, d) → (B, H, T, S), each row summing to 1."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias
    # fp32 at least: a row sums hundreds of small numbers
    return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(scores.dtype)


class SelfAttention(nn.Module):
    def __init__(self, *, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.fp8 = False  # in training on a GPU, project by products of 8-bit numbers
        self.qkv = linear(width, 3 * width)
        for part in self.qkv.weight.chunk(3):  # query, key and value are three Xavier layers, fused
            nn.init.xavier_uniform_(part)
        self.out = linear(width, width)

    def forward(self, x: Tensor, relative: Relative | None = None, wanted: int | None = None) -> Tensor:
        """(B, T, D) → the same, or what the first `wanted` tokens alone attend to: (B, wanted, D)."""
        if relative is None and wanted is None and attends(x, self.heads) and plain(self.qkv):
            mixed = attend(x, self.qkv.weight, self.qkv.bias, self.heads, fp8=self.fp8)
            return through(self.out, mixed)
        # elsewhere the layer stays whole, for whoever has put another in its place or looks at what comes out of it
        if relative is None and wanted is not None and fusable(x) and plain(self.qkv) and not self.fp8:
            query, key, value = self._project_few(x, wanted)
        else:
            query, key, value = split(self._project(x), self.heads)
        bias = relative(query) if relative is not None else None
        mixed = mix(query[:, :, :wanted], key, value, bias)  # (B, H, T, d)
        return self.out(mixed.transpose(1, 2).flatten(2))  # (B, T, D)

    def weights(self, x: Tensor, relative: Relative | None = None) -> Tensor:
        """What `forward` attends to, computed again from its input: (B, H, T, T)."""
        query, key, _ = split(self._project(x), self.heads)
        return attention_weights(query, key, relative(query) if relative is not None else None)

    def _project_few(self, x: Tensor, wanted: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the first `wanted` tokens alone, keys and values of all: (B, H, ·, d)."""
        weights, biases = (tensor.split([x.shape[-1], 2 * x.shape[-1]]) for tensor in (self.qkv.weight, self.qkv.bias))
        query = F.linear(x[:, :wanted], weights[0], biases[0]).unflatten(-1, (self.heads, -1))
        both = F.linear(x, weights[1], biases[1]).unflatten(-1, (2, self.heads, -1))
        key, value = both.permute(2, 0, 3, 1, 4).unbind(0)
        return query.transpose(1, 2), key, value

    def _project(self, x: Tensor) -> Tensor:  # (B, T, 3·D)
        return through(self.qkv, x, fp8=self.fp8)
