"""Mean attention distance (Fig. 7 right, Fig. 11, D.7): how many pixels away are the patches that a head attends to?

The distance of one query patch is the mean distance to all patches, weighted by attention; that of a head is the mean
over queries and images. Class token and registers have no position in the image: they are left out as queries and as
keys, and the other weights of each row are scaled to sum to 1. Heads differ by where they put their weights, whose sum
is always 1.

In a causal model, the distance is that from the pixel that a token predicts to the pixels that it sees, all of them
earlier ones: 1 pixel at least. The start of the sequence is left out as class tokens are, and so is the first pixel as
a query, which sees nothing else. Uniform attention is that to all earlier pixels equally.

Shapes: B images, L attention layers, H heads, T tokens, N = h·w patches.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.inspect.attention import AttentionLayer, attention_layers, visit_attention
from vitkit.inspect.inference import DoesNotApply, require_tokens
from vitkit.model.build import Model


@dataclass(frozen=True)
class AttentionDistance:
    """Attention distances in pixels of the model's input."""

    attention_layers: tuple[AttentionLayer, ...]
    per_image: NDArray[np.float32]  # (B, L, H)
    uniform: float  # of a head that attends equally to all patches that a query sees
    stride: int  # pixels from one patch to the next
    special_share: float = 0.0  # of patches' weights that go to tokens without a position, on average

    @property
    def per_head(self) -> NDArray[np.float32]:
        """Return the mean over images: (L, H)."""
        return self.per_image.mean(axis=0)

    @property
    def per_layer(self) -> NDArray[np.float32]:
        """Return the mean over images and heads: (L,)."""
        return self.per_head.mean(axis=1)

    @property
    def per_block(self) -> NDArray[np.float32]:
        """Return the mean over each block's attention layers: an axial block has two, any other one."""
        return self.per_layer.reshape(-1, 2 if self.attention_layers[0].axis else 1).mean(axis=1)


def attention_distance(model: Model, images: Tensor | Iterable[Tensor]) -> AttentionDistance:
    """Measure the attention distance over one batch, or over an iterable of batches; the paper takes 128 images."""
    tokens = require_tokens(model, "attention distance")
    config, delay = tokens.config, tokens.config.input_delay
    if config.patches <= delay:
        raise DoesNotApply(f"attention distance: a single pixel has none before it for {model.kind} to attend to.")
    distances = patch_distances(config.grid, config.stride).to(next(tokens.parameters()).device)
    # the last n tokens, as queries and as keys
    distances = distances[delay:, : len(distances) - delay]
    layers = attention_layers(tokens)
    per_layer: list[list[Tensor]] = [[] for _ in layers]
    special_shares: list[Tensor] = []

    def collect(index: int, weights: Tensor) -> None:
        per_layer[index].append(mean_distance(weights, distances).float().cpu())
        n = len(distances)
        special_shares.append(weights[..., -n:, :-n].sum(-1).mean((1, 2)).float().cpu())

    for batch in [images] if isinstance(images, Tensor) else images:
        visit_attention(tokens, batch, collect)
    per_image = torch.stack([torch.cat(batches) for batches in per_layer], dim=1)
    visible = torch.ones_like(distances)
    uniform = mean_distance(visible.tril() if delay else visible, distances)
    special_share = float(torch.cat(special_shares).mean())
    return AttentionDistance(tuple(layers), per_image.numpy(), float(uniform), config.stride, special_share)


def mean_distance(weights: Tensor, distances: Tensor) -> Tensor:
    """Return the mean distance of each head: weights (b, H, T, T), distances (n, n) of the last n tokens → (b, H)."""
    n = len(distances)
    between = weights[..., -n:, -n:]
    between = between / between.sum(-1, keepdim=True).clamp(min=torch.finfo(between.dtype).tiny)
    return (between * distances).sum(-1).mean(-1)


def patch_distances(grid: tuple[int, int], stride: int) -> Tensor:
    """Return the pixels between the centres of any two patches, rows first: (N, N)."""
    y, x = torch.meshgrid(*(torch.arange(side, dtype=torch.float32) for side in grid), indexing="ij")
    centres = stride * torch.stack([y.flatten(), x.flatten()], dim=1)
    return torch.linalg.vector_norm(centres[:, None] - centres[None], dim=-1)


def weight_by_distance(
    weights: NDArray[np.float32], patch: tuple[int, int], stride: int
) -> tuple[NDArray[np.float32], float]:
    """Return the share of a patch's weights (h, w) that is 0, 1, 2 … patches away, and the mean distance in pixels."""
    h, w = weights.shape
    distances = patch_distances((h, w), stride)[patch[0] * w + patch[1]].numpy()
    shares = weights.ravel() / max(float(weights.sum()), 1e-30)
    rings = np.rint(distances / stride).astype(int)
    return np.bincount(rings, shares).astype(np.float32), float((shares * distances).sum())
