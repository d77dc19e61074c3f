"""Attention by positions alone (Cordonnier et al. 2020, section 4): no queries, no keys; each head mixes whole tokens.

    out = Σ_h softmax(scores_h) X W_h + b,  W_h: D x D

With the scores of `Quadratic`, sharp enough, a head picks the token at its offset, and k² heads are a k x k convolution
whose kernel is W (the paper's Theorem 1). In `SelfAttention` a head has d = D / H numbers; here it has all D, as the
paper's experiments have. A second linear layer follows, as in the authors' code.

Shapes: B batch, N patches, D width, H heads.
"""

import math

import torch
from torch import Tensor, nn

from vitkit.errors import ConfigError
from vitkit.model.initialise import linear
from vitkit.model.offset_positions import Quadratic, RelativeScores2D


class PositionalAttention(nn.Module):
    def __init__(self, *, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.value = linear(heads * width, width)  # all W_h, one below the other
        self.out = linear(width, width)

    def forward(self, x: Tensor, positions: Quadratic | RelativeScores2D) -> Tensor:  # (B, N, D)
        weights = positions().softmax(dim=-1).to(x.dtype)  # (H, N, N)
        mixed = weights.flatten(0, 1) @ x  # (B, H·N, D)
        heads_last = mixed.unflatten(1, (self.heads, -1)).transpose(1, 2)  # (B, N, H, D)
        return self.out(self.value(heads_last.flatten(2)))  # (B, N, D)

    def weights(self, x: Tensor, positions: Quadratic | RelativeScores2D) -> Tensor:
        """Return the attention weights, which are the same for all images: (B, H, N, N)."""
        return positions().softmax(dim=-1).to(x.dtype).expand(x.shape[0], -1, -1, -1)


@torch.no_grad()
def as_convolution(
    attention: PositionalAttention,
    positions: Quadratic,
    kernel: Tensor,
    bias: Tensor | None = None,
    *,
    sharpness: float,
) -> None:
    """Set the weights by which attention computes a convolution with this kernel, away from the image's edges.

    kernel: (D, D, k, k) as of `torch.nn.Conv2d`, one head for each of its k·k places, k odd; `sharpness` is the paper's
    α. The nearest neighbours of the token that a head picks keep exp(-α) of its weight: rounding in float64 from α = 37
    on, in float32 from 17 on.
    """
    side = kernel.shape[-1]
    if kernel.shape != (*attention.out.weight.shape, side, side) or side**2 != attention.heads or side % 2 == 0:
        raise ConfigError(
            f"a kernel of shape {tuple(kernel.shape)} for {attention.heads} heads of width {attention.out.in_features}",
            needed="(D, D, k, k) with k odd and k·k heads",
        )
    reach = torch.arange(side) - side // 2
    positions.centres.copy_(torch.cartesian_prod(reach, reach))
    positions.sharpness.fill_(math.sqrt(2 * sharpness))
    # (out, in, row, column) → (out, head · in), heads along rows first, as the centres
    attention.value.weight.copy_(kernel.permute(0, 2, 3, 1).flatten(1))
    attention.value.bias.zero_() if bias is None else attention.value.bias.copy_(bias)
    nn.init.eye_(attention.out.weight)
    attention.out.bias.zero_()
