"""Arrays → uint8 RGB pixels: heatmaps over an image, mosaics of many heatmaps, patches as colours.

Shapes: h x w patch grid, R x S tiles of a mosaic, (height, width) of the image.
"""

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]

HEAT, COSINE = "inferno", "viridis"
BRIGHTEST = 98  # percentile of the patches from which on all are drawn equally bright
FAINT = 0.01  # of the mean weight: smaller differences stay dark, they are mostly rounding
DARK, DIM, OPACITY = 18, 0.6, 0.8  # the image's least brightness, its contrast, and the heatmap's opacity at most


def overlay(image: Pixels, weights: Floats, brightest: float = BRIGHTEST) -> Pixels:
    """Return the image (height, width, 3), grey and dimmed, with the heatmap (h, w) over it."""
    return overlay_probability(image, scale_to_unit(weights, brightest))


def overlay_probability(image: Pixels, weights: Floats) -> Pixels:
    """Return the image, grey and dimmed, with a heatmap (h, w) on 0 to 1 over it, which is not scaled."""
    heatmap = upsample(weights, image.shape[:2])
    opacity = OPACITY * heatmap[..., None]
    grey = DARK + DIM * image.mean(axis=2, keepdims=True)
    return ((1 - opacity) * grey + opacity * apply_colormap(heatmap)).round().clip(0, 255).astype(np.uint8)


def apply_colormap(weights: NDArray[np.floating], colours: str = HEAT) -> Pixels:
    """Map weights (h, w) on 0 to 1 to colours (h, w, 3)."""
    return (colormaps[colours](weights.clip(0, 1))[..., :3] * 255).round().astype(np.uint8)


def scale_to_unit(weights: Floats, brightest: float = BRIGHTEST) -> Floats:
    """Scale to 0 to 1; the brightest few patches are equal, or one outlier would darken the rest. A flat map is 0."""
    low, high = float(weights.min()), float(np.percentile(weights, brightest))
    if high <= low:
        high = float(weights.max())
    span = max(high - low, FAINT * float(np.abs(weights).mean()))
    return ((weights - low) / span).clip(0, 1) if span else np.zeros_like(weights)


def upsample(weights: Floats, size: tuple[int, int]) -> Floats:
    """Resize (h, w) to (height, width), bicubic: a patch is not a hard edge in the image."""
    resized = Image.fromarray(weights.astype(np.float32)).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return np.asarray(resized).clip(0, 1)


def patches_to_pixels(colours: NDArray[np.generic], size: tuple[int, int]) -> Pixels:
    """Enlarge (h, w, 3), on 0 to 1 or in bytes, to (height, width, 3), each patch one block of pixels."""
    small = colours if colours.dtype == np.uint8 else (np.asarray(colours, dtype=np.float32) * 255).round()
    image = Image.fromarray(small.astype(np.uint8))
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.NEAREST))


def mosaic(tiles: Pixels, gap: int, times: int = 1) -> NDArray[np.uint8]:
    """Join tiles (R, S, h, w, 3), enlarged `times` times, as RGBA with `gap` transparent pixels between them."""
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


def outline_patch(image: Pixels, grid: tuple[int, int], patch: tuple[int, int]) -> Pixels:
    """Return the image with a frame around one patch."""
    marked = image.copy()
    (height, width), (row, column) = image.shape[:2], patch
    top, bottom = row * height // grid[0], (row + 1) * height // grid[0]
    left, right = column * width // grid[1], (column + 1) * width // grid[1]
    for inset, colour in enumerate([(0, 0, 0), (255, 255, 255), (255, 255, 255)]):
        inside = slice(top + inset, max(bottom - inset, 0)), slice(left + inset, max(right - inset, 0))
        marked[inside[0], inside[1]][[0, -1]] = colour
        marked[inside[0], inside[1]][:, [0, -1]] = colour
    return marked


def enlarge_pixels(pixels: Pixels, side: int) -> Pixels:
    """Repeat each pixel, up to `side` pixels: a tiny image has no room for a smooth heatmap or a frame."""
    times = max(side // max(pixels.shape[:2]), 1)
    return pixels.repeat(times, axis=0).repeat(times, axis=1)


def below_each_other(images: list[Pixels], gap: int = 6) -> Pixels:
    """Join images of one size in a column, on white."""
    return side_by_side([image.swapaxes(0, 1) for image in images], gap).swapaxes(0, 1)


def side_by_side(images: list[Pixels], gap: int = 6) -> Pixels:
    """Join images of one size in a row, on white."""
    height, width = images[0].shape[:2]
    sheet = np.full((height, len(images) * (width + gap) - gap, 3), 255, dtype=np.uint8)
    for index, image in enumerate(images):
        sheet[:, index * (width + gap) : index * (width + gap) + width] = image
    return sheet
