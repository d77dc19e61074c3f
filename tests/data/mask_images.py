"""Folders of images with masks for tests: coloured shapes on noise, whose masks are known exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("background", "disc", "square")
COLOURS = np.array([(90, 90, 90), (220, 60, 50), (40, 90, 220)])
IGNORED = 255


def scene_with_mask(seed: int, size: tuple[int, int] = (48, 64)) -> tuple[np.ndarray, np.ndarray]:
    """Return an image (h, w, 3) of a disc and a square on noise, and its mask (h, w) with an ignored rim."""
    random = np.random.default_rng(seed)
    height, width = size
    rows, columns = np.mgrid[:height, :width]
    mask = np.zeros(size, np.uint8)
    for number in random.permutation([1, 2]):
        centre = random.uniform(0.2, 0.8, 2) * size
        reach = random.uniform(0.15, 0.3) * min(size)
        away = np.abs(np.stack([rows - centre[0], columns - centre[1]]))
        distance = np.hypot(*away) if number == 1 else away.max(axis=0)
        mask[distance < reach] = number
        mask[np.abs(distance - reach) < 0.7] = IGNORED
    colours = COLOURS[np.where(mask == IGNORED, 0, mask)]
    return (colours + random.normal(0, 12, (*size, 3))).clip(0, 255).astype(np.uint8), mask


def write_masked_folder(
    folder: Path,
    images: int,
    *,
    size: tuple[int, int] = (48, 64),
    splits: tuple[str, ...] = ("train", "val"),
    classes: tuple[str, ...] = CLASSES,
) -> Path:
    """Write images/SPLIT/N.jpg, masks/SPLIT/N.png and classes.txt."""
    for number in range(images * len(splits)):
        split = splits[number // images]
        image, mask = scene_with_mask(number, size)
        for kind, array, ending in (("images", image, "jpg"), ("masks", mask, "png")):
            path = folder / kind / split / f"{number:03d}.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(path, quality=95)
    (folder / "classes.txt").write_text("\n".join(classes) + "\n")
    return folder
