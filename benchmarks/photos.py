"""JPEGs of 500 x 400 for benchmarks: re-encoded photos, or synthetic ones of about the same size in bytes."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (500, 400)  # width, height
CLASSES = 10


def photos(folder: Path | None, count: int) -> list[bytes]:
    return real(folder, count) if folder else synthetic(count)


def synthetic(count: int) -> list[bytes]:
    """Return smooth shapes with grain: about as many bytes as a photo of 500 x 400 at quality 75."""
    rng = np.random.default_rng(0)
    images = []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 15, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(SIZE, Image.Resampling.BICUBIC)).astype(np.float32)
        grain = np.clip(smooth + rng.normal(0, 6, (SIZE[1], SIZE[0], 1)), 0, 255).astype(np.uint8)
        images.append(as_jpeg(Image.fromarray(grain)))
    return images


def real(folder: Path, count: int) -> list[bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        raise SystemExit(f"{folder} holds no .jpg")
    chosen = itertools.islice(itertools.cycle(paths[:: max(len(paths) // count, 1)]), count)
    return [as_jpeg(Image.open(path).convert("RGB").resize(SIZE, Image.Resampling.BICUBIC)) for path in chosen]


def as_jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=75)
    return file.getvalue()


def write(images: list[bytes], folder: Path, count: int) -> list[Path]:
    """Write `count` files into class folders, repeating the images under other names, and return the paths."""
    paths = [folder / f"class{number % CLASSES}" / f"{number:06d}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(images[number % len(images)])
    return paths
