"""Small images with masks, and the same masks in every form that people have them in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pycocotools.mask as coco
from PIL import Image

SIZE = (12, 16)  # height, width
CLASSES = ("background", "cat", "dog")


def image(seed: int, size: tuple[int, int] = SIZE) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def numbers(seed: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Return a mask of background 0 with a cat 1 and a dog 2, in front of it."""
    height, width = size
    mask = np.zeros(size, np.uint8)
    top, left = seed % 3, seed % 4
    mask[top : top + height // 2, left : left + width // 2] = 1
    mask[height // 3 : height // 3 + 3, width // 3 : -2] = 2
    return mask


def save(path: Path, pixels: np.ndarray | Image.Image, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path, **options)
    return path


def write_pairs(root: Path, images: str, masks: str, count: int = 3, first: int = 0) -> None:
    """Write pairs under patterns of paths such as "train/images/{}.jpg"."""
    for seed in range(first, first + count):
        save(root / images.format(seed), image(seed))
        save(root / masks.format(seed), numbers(seed))


def coco_polygon(mask: np.ndarray) -> list[float]:
    """Return the corners of a rectangle of true pixels."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    top, bottom, left, right = map(float, (rows[0], rows[-1] + 1, columns[0], columns[-1] + 1))
    return [left, top, right, top, right, bottom, left, bottom]


def areas(seed: int) -> list[tuple[int, np.ndarray]]:
    """Return the classes of a mask with their areas, where the cat goes on under the dog."""
    mask, cat = numbers(seed), np.zeros(SIZE, bool)
    top, left = seed % 3, seed % 4
    cat[top : top + SIZE[0] // 2, left : left + SIZE[1] // 2] = True
    return [(1, cat), (2, mask == 2)]


def coco_json(seeds: range, form: str = "polygon", ids: tuple[int, int] = (7, 3)) -> dict[str, Any]:
    """Return COCO's JSON of some images; `ids` are those of the categories dog and cat, which are not in order."""
    dog, cat = ids

    def segmentation(area: np.ndarray) -> object:
        if form == "polygon":
            return [coco_polygon(area)]
        rle = coco.encode(np.asfortranarray(area.astype(np.uint8)))
        if form == "rle":
            return {"size": rle["size"], "counts": rle["counts"].decode()}
        flat = area.ravel(order="F")
        edges = np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1], [True]]))
        return {"size": rle["size"], "counts": ([0] if flat[0] else []) + np.diff(edges).tolist()}

    return {
        "images": [{"id": 100 + seed, "file_name": f"{seed}.jpg", "height": 12, "width": 16} for seed in seeds],
        "categories": [{"id": dog, "name": "dog"}, {"id": cat, "name": "cat"}],
        "annotations": [
            {
                "id": 10 * seed + number,
                "image_id": 100 + seed,
                "category_id": cat if number == 1 else dog,
                "segmentation": segmentation(area),
                "iscrowd": int(form != "polygon"),
            }
            for seed in seeds
            for number, area in areas(seed)
        ],
    }


def write_json(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_yolo(root: Path, images: str, labels: str, seeds: range) -> None:
    for seed in seeds:
        save(root / images.format(seed), image(seed))
        lines = []
        for number, area in areas(seed):
            polygon = np.array(coco_polygon(area)).reshape(-1, 2) / (SIZE[1], SIZE[0])
            lines.append(f"{number - 1} {' '.join(f'{value:.6f}' for value in polygon.ravel())}")
        path = root / labels.format(seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
