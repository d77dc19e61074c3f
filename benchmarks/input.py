"""Pictures per second and core, from a JPEG of 500 x 400 to 224 x 224: vitkit's two chains beside Pillow's.

    python benchmarks/input.py [--folder PHOTOS] [--json]

One thread, process time. The ways take turns in short rounds on the same pictures; speeds are medians over the rounds,
and so are the ratios to Pillow, each taken within its round, so that a busy neighbour slows both sides alike. With a
folder, real photos are re-saved at 500 x 400; without one, made-up ones serve.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitkit.data.decode import decode
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.transforms import Exact, Fast

SIDE, ROUNDS, PICTURES = 224, 60, 120
EACH_ROUND = 12  # pictures
BASE = "Pillow, bilinear"
Way = Callable[[bytes], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pictures = real(options.folder) if options.folder else made_up()
    speeds, ratios = measure(ways(), pictures)
    bytes_each = round(statistics.mean(map(len, pictures)))
    if options.json:
        print(json.dumps({"pictures_per_second": speeds, "ratio_to_pillow": ratios, "bytes_each": bytes_each,
                          "torch": torch.__version__, "machine": platform.processor() or platform.machine()}, indent=2))
        return
    print(f"{len(pictures)} JPEGs of 500 x 400, {bytes_each:,} bytes each, to {SIDE} x {SIDE}; one core")
    for name, speed in speeds.items():
        print(f"{name:<48} {speed:>7,.0f}/s   {ratios[name]:.2f} x Pillow")


def ways() -> dict[str, Way]:
    whole = Fast(image=(SIDE, SIDE), crop=None, flip=False, whole=Preprocessing(resize="squash"))
    cropped = Fast(image=(SIDE, SIDE))
    exact = Exact(image=(SIDE, SIDE), preprocessing=Preprocessing(resize="squash", interpolation="bilinear"))
    bicubic = Exact(image=(SIDE, SIDE), preprocessing=Preprocessing(resize="squash", interpolation="bicubic"))
    draws = Fast.draw(0, 0, range(PICTURES))
    turns = itertools.cycle(draws)
    return {
        BASE: lambda content: pillow(content, Image.Resampling.BILINEAR),
        "Pillow, bicubic": lambda content: pillow(content, Image.Resampling.BICUBIC),
        "vitkit: decode alone": decode,
        "vitkit: uint8, bilinear (training)": lambda content: whole(decode(content), draws[0]),
        "vitkit: uint8, random crop and flip (training)": lambda content: cropped(decode(content), next(turns)),
        "vitkit: float32, bilinear (exact)": lambda content: exact(decode(content)),
        "vitkit: float32, bicubic (exact)": lambda content: bicubic(decode(content)),
    }


def pillow(content: bytes, filter: Image.Resampling) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB").resize((SIDE, SIDE), filter))


def measure(ways: dict[str, Way], pictures: list[bytes]) -> tuple[dict[str, float], dict[str, float]]:
    """Pictures per second, and how many times Pillow's, for each way."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS):
        first = turn * EACH_ROUND % len(pictures)
        for name, way in ways.items():
            started = time.process_time()
            for content in pictures[first:first + EACH_ROUND]:
                way(content)
            times[name].append(time.process_time() - started)
    speeds = {name: EACH_ROUND / statistics.median(rounds) for name, rounds in times.items()}
    ratios = {name: statistics.median(base / own for base, own in zip(times[BASE], rounds, strict=True))
              for name, rounds in times.items()}
    return speeds, ratios


def made_up() -> list[bytes]:
    """Smooth shapes with grain: about the size, in bytes, of a photo of 500 x 400 at quality 75."""
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(PICTURES):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 15, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((500, 400), Image.Resampling.BICUBIC)).astype(np.float32)
        grain = np.clip(smooth + rng.normal(0, 6, (400, 500, 1)), 0, 255).astype(np.uint8)
        pictures.append(as_jpeg(Image.fromarray(grain)))
    return pictures


def real(folder: Path) -> list[bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    chosen = paths[::max(len(paths) // PICTURES, 1)][:PICTURES]
    return [as_jpeg(Image.open(path).convert("RGB").resize((500, 400), Image.Resampling.BICUBIC)) for path in chosen]


def as_jpeg(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=75)
    return file.getvalue()


if __name__ == "__main__":
    main()
