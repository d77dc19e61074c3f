"""Small images, and the same images in every kind of source."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vitkit.data.sources.dataset import Split

ImageFiles = dict[str, bytes]  # SPLIT/CLASS/NAME.png → file


def png(seed: int, size: tuple[int, int] = (6, 5)) -> bytes:
    """Return a PNG of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def sample_files() -> ImageFiles:
    """Return files of three classes, one of them missing from test."""
    return {
        f"{split}/{name}/{number}.png": png(100 * group + number)
        for group, (split, name, count) in enumerate(
            [
                ("train", "cat", 4),
                ("train", "dog", 3),
                ("train", "übung", 2),
                ("test", "cat", 2),
                ("test", "dog", 1),
            ]
        )
        for number in range(count)
    }


def class_names(images: ImageFiles) -> list[str]:
    """Return class names in an order that is not sorted, as numbers in a file need not be."""
    return list(dict.fromkeys(path.split("/")[1] for path in reversed(images)))


def write_files(root: Path, images: ImageFiles) -> Path:
    for path, content in images.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def as_csv(root: Path, images: ImageFiles) -> Path:
    with (root / "list.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "split"])
        rows.writerows([path, path.split("/")[1], path.split("/")[0]] for path in images)
    return root / "list.csv"


def as_jsonl(root: Path, images: ImageFiles) -> Path:
    rows = [{"image": path, "class": path.split("/")[1], "split": path.split("/")[0]} for path in images]
    (root / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root / "list.jsonl"


def as_npz(path: Path, images: ImageFiles, *, compressed: bool = False) -> Path:
    """Write the images in sorted order, as folders are read."""
    names = class_names(images)
    arrays: dict[str, np.ndarray] = {"class_names": np.array(names)}
    for split in ("train", "test"):
        chosen = sorted(key for key in images if key.startswith(split))
        arrays[f"x_{split}"] = np.stack([pixels_of(images[key]) for key in chosen])
        arrays[f"y_{split}"] = np.array([names.index(key.split("/")[1]) for key in chosen])
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def misread_by_threads(split: Split, truth: Sequence[bytes]) -> list[int]:
    """Return the rows that were wrong when four threads read all of them repeatedly."""
    wrong: list[int] = []

    def read() -> None:
        wrong.extend(row for row in [*range(len(truth))] * 30 if split.read(row) != truth[row])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def pixels_of(image: bytes | np.ndarray) -> np.ndarray:
    if isinstance(image, np.ndarray):
        return image
    return np.asarray(Image.open(io.BytesIO(image)))
