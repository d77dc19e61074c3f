"""Mean attention distance (Fig. 7 right, Fig. 11, D.7): how far away, in pixels, is what a head attends to?

For one query patch: the distance to every patch, weighted by the attention that it gets. Then the mean over queries and
pictures. The class token has no place in the picture: as a query it is left out, and as a key, too, the rest of each
row scaled to sum to 1 again. Weights sum to 1 in every head; distances do not, so heads differ by where they put them.

Shapes: B pictures, V views (layers), H heads, T tokens, N = h·w patches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.inspect.applies import transformer
from vitkit.inspect.attention import View, each_view, views
from vitkit.model.build import Model


@dataclass(frozen=True)
class AttentionDistance:
    """Pixels of the model's image."""

    views: tuple[View, ...]
    pictures: NDArray[np.float32]  # (B, V, H)
    uniform: float  # of a head that looks everywhere alike
    stride: int  # pixels from one patch to the next

    @property
    def heads(self) -> NDArray[np.float32]:
        """(V, H)"""
        return self.pictures.mean(axis=0)

    @property
    def layers(self) -> NDArray[np.float32]:
        """(V,)"""
        return self.heads.mean(axis=1)

    @property
    def by_depth(self) -> NDArray[np.float32]:
        """As `layers`; the two views of an axial layer, rows and columns, are one step of depth together."""
        return self.layers.reshape(-1, 2 if self.views[0].along else 1).mean(axis=1)


def attention_distance(model: Model, images: Tensor | Iterable[Tensor]) -> AttentionDistance:
    """Over one batch, or over as many as an iterable gives; the paper takes 128 pictures."""
    vit = transformer(model, "attention distance")
    config = vit.config
    apart = patch_distances(config.grid, config.stride).to(next(vit.parameters()).device)
    found: list[Tensor] = []
    for batch in [images] if isinstance(images, Tensor) else images:
        seen: list[list[Tensor]] = [[] for _ in views(vit)]

        def look(view: int, weights: Tensor, seen: list[list[Tensor]] = seen) -> None:
            seen[view].append(mean_distance(weights, apart).float().cpu())

        each_view(vit, batch, look)
        found.append(torch.stack([torch.cat(parts) for parts in seen], dim=1))
    return AttentionDistance(tuple(views(vit)), torch.cat(found).numpy(), float(apart.mean()), config.stride)


def mean_distance(weights: Tensor, apart: Tensor) -> Tensor:
    """Weights (b, H, T, T) and distances (N, N) → (b, H); of T tokens the last N are patches."""
    n = len(apart)
    between = weights[..., -n:, -n:]
    between = between / between.sum(-1, keepdim=True).clamp(min=torch.finfo(between.dtype).tiny)
    return (between * apart).sum(-1).mean(-1)


def patch_distances(grid: tuple[int, int], stride: int) -> Tensor:
    """(N, N): pixels between the centres of any two patches, rows first."""
    y, x = torch.meshgrid(*(torch.arange(side, dtype=torch.float32) for side in grid), indexing="ij")
    centres = stride * torch.stack([y.flatten(), x.flatten()], dim=1)
    return torch.linalg.vector_norm(centres[:, None] - centres[None], dim=-1)


def by_distance(weights: NDArray[np.float32], patch: tuple[int, int], stride: int) -> tuple[NDArray[np.float32], float]:
    """One patch's weights (h, w) → their shares 0, 1, 2 … patches away, and their mean distance in pixels."""
    h, w = weights.shape
    apart = patch_distances((h, w), stride)[patch[0] * w + patch[1]].numpy()
    shares = weights.ravel() / max(float(weights.sum()), 1e-30)
    rings = np.rint(apart / stride).astype(int)
    return np.bincount(rings, shares).astype(np.float32), float((shares * apart).sum())
