"""Attention rollout (D.8): from which patches a token's last state is mixed together, through all layers.

Heads are averaged and layers multiplied. The paper does not mention the residual connections; Abnar & Zuidema (2020),
whom it cites, count them as half of what a token becomes: 0.5 A + 0.5 I, our default. `identity=False` is the text of
the paper, taken literally.

Shapes: B pictures, H heads, T tokens, h x w patch grid.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.inspect.applies import transformer
from vitkit.inspect.attention import each_view
from vitkit.inspect.tokens import Token, over_patches, query
from vitkit.model.build import Model


def rollout(model: Model, images: Tensor, *, identity: bool = True, token: Token | None = None) -> NDArray[np.float32]:
    """(B, h, w): the share of each patch in a token's last state; without a token, in the one that the head reads.

    Where the head reads all patches (average or attention pooling), the mean over them.
    """
    vit = transformer(model, "attention rollout")
    asked = query(vit, token)
    rolled: list[Tensor] = []

    def look(view: int, weights: Tensor) -> None:
        step = through_layer(weights, identity)
        if view == 0:
            rolled.append(step)
        else:
            rolled[-1] = step @ rolled[-1]

    each_view(vit, images, look)
    rows = torch.einsum("t,bts->bs", asked.to(rolled[0]), torch.cat(rolled))
    return over_patches(vit, rows).float().cpu().numpy()


def through_layer(weights: Tensor, identity: bool) -> Tensor:
    """(b, H, T, T) → (b, T, T): how one layer mixes tokens; rows sum to 1."""
    mixed = weights.mean(dim=1)
    return 0.5 * mixed + 0.5 * torch.eye(mixed.shape[-1], device=mixed.device) if identity else mixed
