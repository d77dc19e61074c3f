"""Arrays → pixels: maps over a photo, mosaics of many maps, patches as colours. Everything is uint8 RGB.

Shapes: h x w patch grid, R x S tiles of a mosaic, (height, width) of the picture.
"""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]

HEAT, COSINE = "inferno", "viridis"
BRIGHTEST = 98  # percent of the patches, from which on all are drawn alike
FAINT = 0.01  # of the mean weight: differences that are smaller do not become light, being mostly rounding
DARK, DIM, GLOW = 18, 0.6, 0.8  # a photo's least light, what is left of its own, and the share that a map can cover


def lit(photo: Pixels, weights: Floats, brightest: float = BRIGHTEST) -> Pixels:
    """A grey, dim photo (height, width, 3) on which the map (h, w) glows."""
    light = enlarge(unit(weights, brightest), photo.shape[:2])
    cover = GLOW * light[..., None]
    grey = DARK + DIM * photo.mean(axis=2, keepdims=True)
    return ((1 - cover) * grey + cover * heat(light)).round().clip(0, 255).astype(np.uint8)


def heat(weights: NDArray[np.floating], colours: str = HEAT) -> Pixels:
    """(h, w) on 0 to 1 → (h, w, 3)."""
    return (colormaps[colours](weights.clip(0, 1))[..., :3] * 255).round().astype(np.uint8)


def unit(weights: Floats, brightest: float = BRIGHTEST) -> Floats:
    """Onto 0 to 1; the brightest few patches alike, or one odd patch would take all the light. A flat map is 0."""
    low, high = float(weights.min()), float(np.percentile(weights, brightest))
    if high <= low:
        high = float(weights.max())
    span = max(high - low, FAINT * float(np.abs(weights).mean()))
    return ((weights - low) / span).clip(0, 1) if span else np.zeros_like(weights)


def enlarge(weights: Floats, size: tuple[int, int]) -> Floats:
    """(h, w) → (height, width), smoothly: a patch is not a hard edge in the picture."""
    shown = Image.fromarray(weights.astype(np.float32)).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return np.asarray(shown).clip(0, 1)


def blocks(colours: NDArray[np.generic], size: tuple[int, int]) -> Pixels:
    """(h, w, 3) on 0 to 1 or in bytes → (height, width, 3), each patch a block of its own."""
    small = colours if colours.dtype == np.uint8 else (np.asarray(colours, dtype=np.float32) * 255).round()
    picture = Image.fromarray(small.astype(np.uint8))
    return np.asarray(picture.resize((size[1], size[0]), Image.Resampling.NEAREST))


def mosaic(tiles: Pixels, gap: int, times: int = 1) -> NDArray[np.uint8]:
    """(R, S, h, w, 3) → RGBA with `gap` transparent pixels between tiles, each pixel a block of times x times."""
    rows, columns, h, w = tiles.shape[:4]
    h, w = h * times, w * times
    sheet = np.zeros((rows * (h + gap) - gap, columns * (w + gap) - gap, 4), dtype=np.uint8)
    for row in range(rows):
        for column in range(columns):
            tile = tiles[row, column].repeat(times, axis=0).repeat(times, axis=1)
            top, left = row * (h + gap), column * (w + gap)
            sheet[top : top + h, left : left + w, :3] = tile
            sheet[top : top + h, left : left + w, 3] = 255
    return sheet


def outlined(photo: Pixels, grid: tuple[int, int], patch: tuple[int, int]) -> Pixels:
    """The photo with a frame around one patch."""
    marked = photo.copy()
    (height, width), (row, column) = photo.shape[:2], patch
    top, bottom = row * height // grid[0], (row + 1) * height // grid[0]
    left, right = column * width // grid[1], (column + 1) * width // grid[1]
    for inset, colour in enumerate([(0, 0, 0), (255, 255, 255), (255, 255, 255)]):
        inside = slice(top + inset, max(bottom - inset, 0)), slice(left + inset, max(right - inset, 0))
        marked[inside[0], inside[1]][[0, -1]] = colour
        marked[inside[0], inside[1]][:, [0, -1]] = colour
    return marked


def enlarged(pixels: Pixels, side: int) -> Pixels:
    """Up to `side` pixels, each pixel a block: on a tiny picture, a smooth map or a frame has no room."""
    times = max(side // max(pixels.shape[:2]), 1)
    return pixels.repeat(times, axis=0).repeat(times, axis=1)


def beside(pictures: list[Pixels], gap: int = 6) -> Pixels:
    """Pictures of one size in a row, on white."""
    height, width = pictures[0].shape[:2]
    sheet = np.full((height, len(pictures) * (width + gap) - gap, 3), 255, dtype=np.uint8)
    for index, picture in enumerate(pictures):
        sheet[:, index * (width + gap) : index * (width + gap) + width] = picture
    return sheet
