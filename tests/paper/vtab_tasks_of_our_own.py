"""Three small tasks, made of drawn shapes: colours in folders, textures in an array file, locations in shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.shard_writer import write_shards
from vitkit.data.sources.open import open_data

SIDE = 24
COLOURS = {"blue": (30, 60, 220), "green": (40, 200, 60), "red": (220, 40, 40)}
SIZES = {"train": 40, "val": 10, "test": 60}
SMALL = ("--image", "24", "--steps", "12", "--batch", "16", "--lr", "0.05", "--device", "cpu", "--workers", "0")
PLAIN = ("--set", "subset_images=40", "precision=fp32")


def make_tasks(root: Path) -> Path:
    """Write the folder of tasks; location is described in vtab.toml, the others are in the folders of their groups."""
    draws = np.random.default_rng(4)
    for split, count in SIZES.items():
        for number in range(count):
            name = [*COLOURS][number % 3]
            save(noisy(draws, COLOURS[name]), root / "natural/colours" / split / name / f"{number}.png")
    arrays = {}
    for split, count in SIZES.items():
        labels = np.arange(count) % 2
        arrays[f"x_{split}"] = np.stack([stripes(draws, bool(label)) for label in labels])
        arrays[f"y_{split}"] = labels
    (root / "specialized").mkdir()
    np.savez(root / "specialized/textures.npz", **arrays)
    for split, count in SIZES.items():
        for number in range(count):
            place = ("left", "right")[number % 2]
            save(square(draws, place == "right"), root.parent / "places" / split / place / f"{number}.png")
    write_shards(open_data(root.parent / "places"), root / "location")
    (root / "vtab.toml").write_text('[location]\ngroup = "structured"\ncrop = false\nflip = false\n')
    return root


def noisy(draws: np.random.Generator, colour: tuple[int, ...]) -> NDArray[np.uint8]:
    pixels = np.array(colour) + draws.normal(0, 30, (SIDE, SIDE, 3))
    return pixels.clip(0, 255).astype(np.uint8)


def stripes(draws: np.random.Generator, upright: bool) -> NDArray[np.uint8]:
    pixels = noisy(draws, (90, 90, 90))
    pixels[:, draws.integers(4) :: 4] += 100
    return pixels if upright else pixels.transpose(1, 0, 2).copy()


def square(draws: np.random.Generator, right: bool) -> NDArray[np.uint8]:
    """Draw a white square in the left or the right half: its mirror image has the other label."""
    pixels = noisy(draws, (60, 60, 60))
    top, left = draws.integers(0, SIDE - 8), draws.integers(0, 4) + (SIDE // 2 if right else 0)
    pixels[top : top + 8, left : left + 8] = 250
    return pixels


def save(pixels: NDArray[np.uint8], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
