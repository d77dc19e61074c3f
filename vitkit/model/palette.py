"""A palette of colours for the pixels of a set of images, by k-means (Chen et al. 2020, section 3.2).

Colours are in the model's input space, normalised as its images are, so that quantising is part of the forward pass.

Shapes: B images, C channels, N pixels of an image, K colours, n colours that occur.
"""

from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.data.stateless_rng import generator

PIXELS_PER_COLOUR = 256  # of the sample that k-means sees; more moves the mean error by less than a percent
MOST_ITERATIONS = 30
CHUNK = 2**8  # pixels whose distances to all colours are held at a time: they stay in a cache, four times as fast
PALETTE = 0x9A1E  # makes these draws differ from others of the same seed

Colours = NDArray[np.float64]


def uniform_palette(colours: int, channels: int) -> Tensor:
    """Return colours (K, C) on a regular grid over [-1, 1], which a model has before it has seen any image."""
    levels = max(ceil(colours ** (1 / channels) - 1e-9), 2)
    index = torch.arange(colours) * levels**channels // colours  # evenly spaced where the grid has more than K points
    digits = [index // levels**digit % levels for digit in reversed(range(channels))]
    return torch.stack(digits, dim=1) / (levels - 1) * 2 - 1


def nearest_colours(images: Tensor, palette: Tensor) -> Tensor:
    """Return the index of the nearest colour of each pixel, rows first: (B, C, height, width), (K, C) → (B, N)."""
    pixels = images.flatten(2).transpose(1, 2)  # (B, N, C)
    # the squared distance without the pixel's own square, which is the same for all colours
    return (palette.square().sum(1) - 2 * pixels @ palette.T).argmin(dim=-1)


def kmeans_palette(images: Tensor, colours: int, seed: int) -> tuple[Tensor, float]:
    """Return a palette (K, C) for images (B, C, height, width), and the root of its mean squared error.

    Lloyd's algorithm from k-means++ on a sample of the pixels, in float64 and without a thread that could change the
    order of a sum: the same images and seed always give the same palette. Its colours come darkest first.
    """
    channels = images.shape[1]
    pixels = images.movedim(1, -1).reshape(-1, channels).double().numpy()
    rng = generator(seed, PALETTE)
    sample = rng.permutation(len(pixels))[: colours * PIXELS_PER_COLOUR]
    occurring, counts = np.unique(pixels[np.sort(sample)], axis=0, return_counts=True)  # (n, C), (n,)
    centres = _spread_out(occurring, counts, colours, rng)
    assigned = np.full(len(occurring), -1)
    for _ in range(MOST_ITERATIONS):
        before, (assigned, _) = assigned, _assign(occurring, centres)
        if (assigned == before).all():
            break
        weights = np.bincount(assigned, counts, colours)
        for channel in range(channels):
            sums = np.bincount(assigned, counts * occurring[:, channel], colours)
            centres[:, channel] = np.where(weights > 0, sums / np.maximum(weights, 1), centres[:, channel])
    _, distances = _assign(occurring, centres)
    order = np.lexsort((*centres.T, centres.sum(1)))
    return torch.from_numpy(centres[order]).float(), float(np.sqrt(np.average(distances, weights=counts)))


def _spread_out(occurring: Colours, counts: NDArray[np.int64], colours: int, rng: np.random.Generator) -> Colours:
    """Return the first centres (K, C): each drawn in proportion to the squared distance to those before (k-means++).

    Where there are fewer colours than centres, the rest repeat one that is there, and no pixel has their index.
    """
    centres = np.repeat(occurring[rng.choice(len(occurring), p=counts / counts.sum())][None], colours, axis=0)
    nearest = np.full(len(occurring), np.inf)
    for index in range(1, colours):
        nearest = np.minimum(nearest, ((occurring - centres[index - 1]) ** 2).sum(1))
        weights = nearest * counts
        if not weights.any():
            break
        centres[index] = occurring[rng.choice(len(occurring), p=weights / weights.sum())]
    return centres


def _assign(pixels: Colours, centres: Colours) -> tuple[NDArray[np.int64], Colours]:
    """Return the index of the nearest centre of each pixel, and the squared distance to it."""
    assigned, distances = np.empty(len(pixels), np.int64), np.empty(len(pixels))
    for start in range(0, len(pixels), CHUNK):
        part = slice(start, start + CHUNK)
        squares = (centres**2).sum(1) - 2 * pixels[part] @ centres.T
        assigned[part] = squares.argmin(1)
        distances[part] = ((pixels[part] - centres[assigned[part]]) ** 2).sum(1)
    return assigned, distances
