"""Images per second from a JPEG of 500 x 400 to 224 x 224: vitkit compared with Pillow and, if installed, torchvision.

    python benchmarks/input.py [--folder PHOTOS] [--workers N] [--batch 256] [--seconds 2] [--json]

First on one core, in process time: complete pipelines, then the stages of the training pipeline. They take turns in
short rounds on the same images; speeds are medians over the rounds, and so are the ratios to Pillow, each taken within
its round, so that a busy neighbour slows both sides alike. Then complete data loaders, from files to batches in this
process, with N workers each (default: all cores), by the clock, in turn again: vitkit's own, and the pipelines of
Pillow and torchvision in torch's DataLoader, with the same random crops. On a machine with a GPU, batches end in pinned
memory. With a folder, real photos are re-encoded at 500 x 400; without one, synthetic images are used.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from photos import photos, write
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitkit.data.decode import decode
from vitkit.data.loader import Loader
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.random_boxes import random_box
from vitkit.data.sources.dataset import Split
from vitkit.data.sources.open import open_data
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import EvalTransform, TrainTransform, round_box
from vitkit.devices import cores

SIDE, ROUNDS, IMAGES = 224, 60, 120
EACH_ROUND = 12  # images
TURNS = 3  # of the complete loaders
BASE = "Pillow, bilinear"
LOADER_BASE = "Pillow in torch's DataLoader"
AREA, ASPECT = (0.05, 1.0), (3 / 4, 4 / 3)
DRAWS = TrainTransform.draw(0, 0, range(IMAGES))
Pipeline = Callable[[int], object]  # called with the index of an image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--workers", type=int, default=cores(), help="workers of each loader; default: all cores")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each loader, in each of three turns")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = photos(options.folder, IMAGES)
    with tempfile.TemporaryDirectory() as folder:
        paths = write(images, Path(folder), IMAGES)
        split = next(iter(open_data(folder).splits.values()))
        speeds, ratios = compare(pipelines(images), BASE)
        stage_speeds, _ = compare(stages(split, images), "reading the bytes")
        loaded, loaded_ratios = compare_loaders(
            loaders(split, paths, options.batch, options.workers), options.workers, options.seconds
        )
    bytes_each = round(statistics.mean(map(len, images)))
    if options.json:
        print(
            json.dumps(
                {
                    "images_per_second": speeds,
                    "ratio_to_pillow": ratios,
                    "stages_per_second": stage_speeds,
                    "loaders": {
                        "workers": options.workers,
                        "batch": options.batch,
                        "images_per_second": loaded,
                        "ratio_to_pillow": loaded_ratios,
                        "pinned": torch.cuda.is_available(),
                    },
                    "bytes_each": bytes_each,
                    "torch": torch.__version__,
                    "cores": cores(),
                    "machine": platform.processor() or platform.machine(),
                },
                indent=2,
            )
        )
        return
    print(f"{len(images)} JPEGs of 500 x 400, {bytes_each:,} bytes each, to {SIDE} x {SIDE}; one core")
    for name, speed in speeds.items():
        print(f"{name:<48} {speed:>7,.0f}/s   {ratios[name]:.2f} x Pillow")
    print("\nstages of the training pipeline, one core")
    together = sum(1 / speed for speed in stage_speeds.values())
    for name, speed in stage_speeds.items():
        print(f"{name:<48} {speed:>7,.0f}/s   {1 / speed / together:4.0%} of the time")
    print(f"{'one after the other':<48} {1 / together:>7,.0f}/s")
    print(f"\ncomplete loaders, {options.workers} workers on {cores()} cores, batches of {options.batch}")
    for name, speed in loaded.items():
        print(f"{name:<48} {speed:>7,.0f}/s   {loaded_ratios[name]:.2f} x Pillow")


def pipelines(images: list[bytes]) -> dict[str, Pipeline]:
    full = TrainTransform(image=(SIDE, SIDE), crop=None, flip=False, preprocessing=Preprocessing(resize="squash"))
    cropped = TrainTransform(image=(SIDE, SIDE))
    exact = EvalTransform(image=(SIDE, SIDE), preprocessing=Preprocessing(resize="squash", interpolation="bilinear"))
    bicubic = EvalTransform(image=(SIDE, SIDE), preprocessing=Preprocessing(resize="squash", interpolation="bicubic"))
    theirs: dict[str, Pipeline] = {}
    if torchvision_works(images[0]):
        contents = [as_bytes(content) for content in images]
        theirs["torchvision, bilinear, random crop and flip"] = lambda n: torchvision_view(contents[n], DRAWS[n])
    return {
        BASE: lambda n: pillow(images[n], Image.Resampling.BILINEAR),
        "Pillow, bicubic": lambda n: pillow(images[n], Image.Resampling.BICUBIC),
        "Pillow, bilinear, random crop and flip": lambda n: pillow_view(io.BytesIO(images[n]), DRAWS[n]),
        **theirs,
        "vitkit: decode alone": lambda n: decode(images[n]),
        "vitkit: uint8, bilinear (training)": lambda n: full(decode(images[n]), DRAWS[0]),
        "vitkit: uint8, random crop and flip (training)": lambda n: cropped(decode(images[n]), DRAWS[n]),
        "vitkit: float32, bilinear (evaluation)": lambda n: exact(decode(images[n])),
        "vitkit: float32, bicubic (evaluation)": lambda n: bicubic(decode(images[n])),
    }


def pillow(content: bytes, filter: Image.Resampling) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB").resize((SIDE, SIDE), filter))


def pillow_view(file: str | io.BytesIO, draws: Sequence[float]) -> np.ndarray:
    """Apply the random crop and flip of TrainTransform with the same draws."""
    image = Image.open(file).convert("RGB")
    box = random_box(draws[1:], (image.height, image.width), area=AREA, aspect=ASPECT)
    image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)
    return np.array(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draws[0] < 0.5 else image)


def stages(split: Split, images: list[bytes]) -> dict[str, Pipeline]:
    cropped = TrainTransform(image=(SIDE, SIDE))
    decoded = [decode(content) for content in images]
    ready = [cropped(pixels, draws) for pixels, draws in zip(decoded, DRAWS, strict=True)]
    batch = torch.empty(EACH_ROUND, 3, SIDE, SIDE, dtype=torch.uint8)
    return {
        "reading the bytes": split.read,
        "decoding": lambda n: decode(images[n]),
        "random crop, resize, flip": lambda n: cropped(decoded[n], DRAWS[n]),
        "collating": lambda n: batch[n % EACH_ROUND].copy_(ready[n]),
    }


def compare(candidates: dict[str, Pipeline], base: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the images per second of each pipeline, and their ratios to the base."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(ROUNDS):
        first = turn * EACH_ROUND % IMAGES
        for name, pipeline in candidates.items():
            started = time.process_time()
            for number in range(first, first + EACH_ROUND):
                pipeline(number)
            times[name].append(time.process_time() - started)
    speeds = {name: EACH_ROUND / statistics.median(rounds) for name, rounds in times.items()}
    ratios = {
        name: statistics.median(one / own for one, own in zip(times[base], rounds, strict=True))
        for name, rounds in times.items()
    }
    return speeds, ratios


def loaders(split: Split, paths: list[Path], batch: int, workers: int) -> dict[str, Callable[[], Iterable[Any]]]:
    pin = torch.cuda.is_available()
    candidates: dict[str, Callable[[], Iterable[Any]]] = {
        LOADER_BASE: lambda: torch_loader(PillowFiles(paths), batch, workers, pin)
    }
    if torchvision_works(paths[0].read_bytes()):
        candidates["torchvision in torch's DataLoader"] = lambda: torch_loader(
            TorchvisionFiles(paths), batch, workers, pin
        )
    candidates["vitkit's Loader"] = lambda: Loader(
        SplitDataset(split=split, transform=TrainTransform(image=(SIDE, SIDE))),
        batch_size=batch,
        workers=workers,
        pin_memory=pin,
    )
    return candidates


class RepeatedFiles(Dataset[Tensor]):
    """An endless dataset that repeats the same files."""

    def __init__(self, paths: Sequence[Path]):
        self.paths = [os.fspath(path) for path in paths]

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, number: int) -> Tensor:
        return self.read(self.paths[number % len(self.paths)], DRAWS[number % IMAGES])

    def read(self, path: str, draws: Sequence[float]) -> Tensor:
        raise NotImplementedError


class PillowFiles(RepeatedFiles):
    def read(self, path: str, draws: Sequence[float]) -> Tensor:
        return torch.from_numpy(pillow_view(path, draws)).permute(2, 0, 1)


class TorchvisionFiles(RepeatedFiles):
    def read(self, path: str, draws: Sequence[float]) -> Tensor:
        return torchvision_view(torch.from_file(path, size=os.path.getsize(path), dtype=torch.uint8), draws)


def torchvision_view(content: Tensor, draws: Sequence[float]) -> Tensor:
    """Apply the random crop and flip of TrainTransform with the same draws."""
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2 import functional as F

    image = decode_jpeg(content, mode=ImageReadMode.RGB)  # (3, h, w) uint8
    box = random_box(draws[1:], (image.shape[1], image.shape[2]), area=AREA, aspect=ASPECT)
    left, top, right, bottom = round_box(box)
    image = F.resized_crop(image, top, left, bottom - top, right - left, [SIDE, SIDE], antialias=True)
    return F.horizontal_flip(image) if draws[0] < 0.5 else image


def torchvision_works(content: bytes) -> bool:
    """Return whether torchvision is installed for this torch and with libjpeg."""
    try:
        return torchvision_view(as_bytes(content), DRAWS[0]).shape == (3, SIDE, SIDE)
    except (ImportError, RuntimeError, OSError):
        return False


def as_bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def torch_loader(dataset: RepeatedFiles, batch: int, workers: int, pin: bool) -> DataLoader[Tensor]:
    return DataLoader(
        dataset,
        batch_size=batch,
        num_workers=workers,
        pin_memory=pin,
        multiprocessing_context="fork" if workers else None,
    )


def compare_loaders(
    made: dict[str, Callable[[], Iterable[Any]]], workers: int, seconds: float
) -> tuple[dict[str, float], dict[str, float]]:
    speeds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(TURNS):
        for name, make in made.items():
            speeds[name].append(speed_of(make(), max(workers, 1), seconds))
    ratios = {
        name: statistics.median(own / base for own, base in zip(values, speeds[LOADER_BASE], strict=True))
        for name, values in speeds.items()
    }
    return {name: statistics.median(values) for name, values in speeds.items()}, ratios


def speed_of(batches: Iterable[Any], workers: int, seconds: float) -> float:
    """Return the images per second once every worker has delivered a batch, over full rounds of the workers."""
    with closing(counts(batches)) as loaded:
        for _ in range(workers):
            next(loaded)
        started, images = time.perf_counter(), 0
        while (taken := time.perf_counter() - started) < seconds or not images:
            images += sum(itertools.islice(loaded, workers))
    return images / taken


def counts(batches: Iterable[Any]) -> Generator[int, None, None]:
    for batch in batches:
        yield len(batch if isinstance(batch, Tensor) else batch.images)


if __name__ == "__main__":
    main()
