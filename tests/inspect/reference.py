"""The analyses in plain NumPy, without any code of vitkit.inspect."""

from __future__ import annotations

import numpy as np

EPS = float(np.finfo(np.float32).eps)  # tolerances are multiples of float32 rounding


def rollout(layers: list[np.ndarray], identity: bool) -> np.ndarray:
    """Attention (H, T, T) of each layer → (T, T)."""
    rolled = np.eye(layers[0].shape[-1])
    for weights in layers:
        mixed = np.mean(weights, axis=0)
        if identity:
            mixed = 0.5 * mixed + 0.5 * np.eye(len(mixed))
        rolled = mixed @ rolled
    return rolled


def distance(weights: np.ndarray, grid: tuple[int, int], stride: int, first: int) -> float:
    """Attention (T, T) of one head → its mean distance; the `first` tokens have no position in the image."""
    positions = [(row * stride, column * stride) for row in range(grid[0]) for column in range(grid[1])]
    total = 0.0
    for query, (y, x) in enumerate(positions, start=first):
        row = [weights[query, key] for key in range(first, first + len(positions))]
        distances = [np.sqrt((y - other_y) ** 2 + (x - other_x) ** 2) for other_y, other_x in positions]
        total += sum(w * d for w, d in zip(row, distances, strict=True)) / sum(row)
    return total / len(positions)


def cosine(table: np.ndarray) -> np.ndarray:
    return np.array([[a @ b / np.sqrt((a @ a) * (b @ b)) for b in table] for a in table])


def mean_distance_of_uniform_attention(grid: tuple[int, int], stride: int) -> float:
    """Weight each offset by how often it occurs: (h - |dy|) (w - |dx|) of (h w)² pairs."""
    h, w = grid
    return (
        stride
        * sum((h - abs(y)) * (w - abs(x)) * np.hypot(y, x) for y in range(1 - h, h) for x in range(1 - w, w))
        / (h * w) ** 2
    )
