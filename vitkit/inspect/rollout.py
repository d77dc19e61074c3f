"""Attention rollout (D.8): how much each patch contributes to a token's last state, through all layers.

Heads are averaged and layers multiplied. The paper does not mention the residual connections; Abnar & Zuidema (2020),
whom it cites, count them as half of each layer: 0.5 A + 0.5 I, our default. `identity=False` follows the paper's text
literally.

Shapes: B images, H heads, T tokens, h x w patch grid.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.inspect.attention import visit_attention
from vitkit.inspect.inference import require_tokens
from vitkit.inspect.query_token import Token, on_patch_grid, query_weights
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
            rolled[-1] = step @ rolled[-1]

    visit_attention(tokens, images, multiply)
    shares = torch.einsum("t,bts->bs", query.to(rolled[0]), torch.cat(rolled))
    return on_patch_grid(tokens, shares).float().cpu().numpy()


def mix_tokens(weights: Tensor, identity: bool) -> Tensor:
    """Return the matrix by which one layer mixes tokens: (b, H, T, T) → (b, T, T), rows sum to 1."""
    mixed = weights.mean(dim=1)
    return 0.5 * mixed + 0.5 * torch.eye(mixed.shape[-1], device=mixed.device) if identity else mixed
