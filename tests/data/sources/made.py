"""Small real pictures, and the same ones in every form that a source can have."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vitkit.data.sources.base import Split

Pictures = dict[str, bytes]  # SPLIT/CLASS/NAME.png → file


def png(seed: int, size: tuple[int, int] = (6, 5)) -> bytes:
    """(height, width, 3) of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def some() -> Pictures:
    """Three classes, one of them missing from test."""
    return {
        f"{split}/{name}/{number}.png": png(100 * place + number)
        for place, (split, name, count) in enumerate(
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


def class_names(pictures: Pictures) -> list[str]:
    """Not sorted: numbers in a file need not be."""
    return list(dict.fromkeys(path.split("/")[1] for path in reversed(pictures)))


def lay_out(root: Path, pictures: Pictures) -> Path:
    for path, content in pictures.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def as_csv(root: Path, pictures: Pictures) -> Path:
    with (root / "list.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "split"])
        rows.writerows([path, path.split("/")[1], path.split("/")[0]] for path in pictures)
    return root / "list.csv"


def as_jsonl(root: Path, pictures: Pictures) -> Path:
    rows = [{"image": path, "class": path.split("/")[1], "split": path.split("/")[0]} for path in pictures]
    (root / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root / "list.jsonl"


def as_npz(path: Path, pictures: Pictures, *, compressed: bool = False) -> Path:
    """In sorted order, as folders are read."""
    names = class_names(pictures)
    arrays: dict[str, np.ndarray] = {"class_names": np.array(names)}
    for split in ("train", "test"):
        chosen = sorted(key for key in pictures if key.startswith(split))
        arrays[f"x_{split}"] = np.stack([pixels_of(pictures[key]) for key in chosen])
        arrays[f"y_{split}"] = np.array([names.index(key.split("/")[1]) for key in chosen])
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def misread_by_threads(split: Split, truth: Sequence[bytes]) -> list[int]:
    """The rows that came out wrong when four threads read all of them again and again."""
    wrong: list[int] = []

    def read() -> None:
        wrong.extend(row for row in [*range(len(truth))] * 30 if split.read(row) != truth[row])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def pixels_of(picture: bytes | np.ndarray) -> np.ndarray:
    if isinstance(picture, np.ndarray):
        return picture
    return np.asarray(Image.open(io.BytesIO(picture)))
