"""Images per second that a data loader feeds, decoding every time (cache=no) beside a cache in memory (cache=ram).

    python benchmarks/cache.py [DATA] [--image 224] [--batch 128] [--workers 1] [--batches 8] [--rounds 3] [--json]

Both loaders take turns in one run on the same images, DATA's training split or synthetic JPEGs of 500 x 400. A round
times so many batches after the first one of each worker. `per core second` is without workers or threads, in processor
time instead of the time that went by, so that a busy neighbour matters less. On a machine with a GPU, a
cache in its memory is the third. The batches of all of them are compared first: what differs is said.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from photos import photos, write

from vitkit.data.image_cache import fill_cache, stored_transform
from vitkit.data.loader import Loader
from vitkit.data.sources.dataset import Split
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import training_split
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import TrainTransform
from vitkit.devices import cores
from vitkit.train.cache import to_gpu

IMAGES, DIFFERENT = 1_000, 120  # synthetic ones; the rest are copies under other names
BUDGET = 2**33


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.data is None:
            write(photos(None, DIFFERENT), Path(folder), IMAGES)
        data = open_data(options.data or folder)
        result = compare(data.splits[training_split(data)], options)
    print(json.dumps(result, indent=2) if options.json else describe(result))


def compare(split: Split, options: argparse.Namespace) -> dict[str, Any]:
    full = TrainTransform(image=(options.image, options.image))
    stored = stored_transform(full)
    started = time.perf_counter()
    cache = fill_cache(split, stored, 3, budget=BUDGET, threads=cores())
    if cache is None:
        raise SystemExit(f"the images take more than {BUDGET / 2**30:g} GiB")
    seconds = time.perf_counter() - started
    decoded = SplitDataset(split=split, transform=full)
    datasets = {"no": decoded, "ram": replace(decoded, transform=stored, cache=cache)}
    if torch.cuda.is_available():
        datasets["gpu"] = replace(datasets["ram"], cache=to_gpu(cache, torch.device("cuda")))
    first = {name: next(iter(Loader(dataset, options.batch))).images.cpu() for name, dataset in datasets.items()}
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in datasets}
    for _ in range(options.rounds):
        for name, dataset in datasets.items():
            rounds[name].append(speeds(dataset, options))
    return {
        "images_per_second": {name: statistics.median(wall for wall, _ in own) for name, own in rounds.items()},
        "images_per_core_second": {name: statistics.median(core for _, core in own) for name, own in rounds.items()},
        "mean_difference": {
            name: (images.float() - first["no"].float()).abs().mean().item() for name, images in first.items()
        },
        "images": len(split),
        "cache_bytes": cache.pixels.numel(),
        "fill_seconds": seconds,
        "image": options.image,
        "batch": options.batch,
        "workers": options.workers,
        "cores": cores(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def speeds(dataset: SplitDataset, options: argparse.Namespace) -> tuple[float, float]:
    """Return the images per second with workers or threads, and per second of the core that makes them alone."""
    with closing(iter(Loader(dataset, options.batch, workers=options.workers))) as batches:
        for _ in range(max(options.workers, 1)):
            next(batches)
        started = time.perf_counter()
        for _ in range(options.batches):
            next(batches)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken = time.perf_counter() - started
    with closing(iter(Loader(dataset, options.batch))) as batches:
        next(batches)
        core = time.process_time()
        for _ in range(options.batches):
            next(batches)
        core = time.process_time() - core
    images = options.batches * options.batch
    return images / taken, images / core


def describe(result: dict[str, Any]) -> str:
    lines = [
        f"{result['images']:,} images at {result['image']} px, batch {result['batch']}, {result['workers']} workers or "
        f"threads on {result['cores']} cores; cache of {result['cache_bytes'] / 2**20:,.0f} MiB, decoded in "
        f"{result['fill_seconds']:.1f} s"
    ]
    for name, speed in result["images_per_second"].items():
        lines.append(
            f"cache={name:4} {speed:>8,.0f} images/s {result['images_per_core_second'][name]:>8,.0f} per core second   "
            f"{speed / result['images_per_second']['no']:.2f} times decoding; pixels differ by "
            f"{result['mean_difference'][name]:.2f} grey levels on average"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
