"""Attention rollout (D.8): how much each patch contributes to a token's last state, through all layers.

Heads are averaged and layers multiplied. The paper does not mention the residual connections; Abnar & Zuidema (2020),
whom it cites, count them as half of each layer: 0.5 A + 0.5 I, our default. `identity=False` follows the paper's text
literally.

The queries of a segmenter join the tokens before a late block. What they are then does not depend on the image: each
starts as itself alone.

Shapes: B images, H heads, T tokens (queries in front, once they have joined), h x w patch grid.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitkit.inspect.attention import visit_attention
from vitkit.inspect.inference import require_tokens
from vitkit.inspect.query_token import Token, on_patch_grid, query_weights, read_row
from vitkit.model.build import Model


def rollout(model: Model, images: Tensor, *, identity: bool = True, token: Token | None = None) -> NDArray[np.float32]:
    """Return the share of each patch in a token's last state: (B, h, w); default: the token that the head reads.

    Where the head reads all patches (average or attention pooling), it is the mean over them.
    """
    tokens = require_tokens(model, "attention rollout")
    query = query_weights(tokens, token)
    rolled: list[Tensor] = []

    def multiply(index: int, weights: Tensor) -> None:
        step = mix_tokens(weights, identity)
        if index == 0:
            rolled.append(step)
        else:
            rolled[-1] = step @ _with_queries(rolled[-1], step.shape[-1] - rolled[-1].shape[-1])

    visit_attention(tokens, images, multiply)
    shares = read_row(query, torch.cat(rolled))
    return on_patch_grid(tokens, shares).float().cpu().numpy()


def mix_tokens(weights: Tensor, identity: bool) -> Tensor:
    """Return the matrix by which one layer mixes tokens: (b, H, T, T) → (b, T, T), rows sum to 1."""
    mixed = weights.mean(dim=1)
    return 0.5 * mixed + 0.5 * torch.eye(mixed.shape[-1], device=mixed.device) if identity else mixed


def _with_queries(rolled: Tensor, joining: int) -> Tensor:
    """Return the shares (b, T, T) with those of tokens that join in front, each its own: (b, Q + T, Q + T)."""
    if not joining:
        return rolled
    own = torch.eye(joining, device=rolled.device, dtype=rolled.dtype).expand(len(rolled), -1, -1)
    length = rolled.shape[-1]
    return torch.cat([F.pad(own, (0, length)), F.pad(rolled, (joining, 0))], dim=1)
