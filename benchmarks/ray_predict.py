"""How fast is `predict --engine ray` on this machine, beside one process and beside plain Ray Data with transformers?

    python benchmarks/ray_predict.py [--images 2000] [--folder PHOTOS] [--rounds 2] [--json]

In one run, in turns, on one local Ray cluster with all cores: `vitkit predict ti16 PHOTOS --out FILE` in one process
(`one process`), the same on the Ray engine (`ray engine`), and `ray.data.read_images` with transformers' ViT of the
same size and its own image processor (`read_images`), which writes Parquet, too. Each is timed as a whole, with the
start of its actors, and again over twice the images; the difference is the steady rate. Rates are given as multiples of
that of one process: the seconds depend on the machine. No image is broken: `read_images` would end with an error.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import photos
import ray
import torch

import vitkit
from vitkit.data.sources.image_paths import find_image_names
from vitkit.devices import cores
from vitkit.predict.image_stream import workers_for
from vitkit.predict.ray_jobs import predict_on_ray
from vitkit.predict.stream import predict_into
from vitkit.progress import no_progress

BATCH = 64
DIFFERENT = 120  # distinct photos; the rest are copies under other names


class Transformers:
    """What a user of transformers and Ray Data writes: processor, model and softmax on a batch of arrays."""

    def __init__(self) -> None:
        from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

        sizes = ViTConfig(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768)
        self.processor = ViTImageProcessor()
        self.model = ViTForImageClassification(sizes).eval()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        inputs = self.processor(images=[*batch["image"]], return_tensors="pt")
        with torch.inference_mode():
            best = self.model(**inputs).logits.softmax(-1).topk(2)
        return {"path": batch["path"], "label": best.indices[:, 0].numpy(), "probability": best.values[:, 0].numpy()}


def one_process(folder: Path, out: Path) -> None:
    classifier = vitkit.Classifier("ti16", device="auto")
    names = find_image_names([str(folder)])
    workers = workers_for(len(names), None, classifier.device)
    predict_into(out / "rows.parquet", classifier, names, top=5, workers=workers)


def ray_engine(folder: Path, out: Path) -> None:
    predict_on_ray(
        out / "rows",
        "ti16",
        [str(folder)],
        image=None,
        preprocessing=lambda model: None,
        labels=None,
        top=5,
        csv_raw=False,
        overwrite=False,
        progress=no_progress,
    )


def read_images(folder: Path, out: Path) -> None:
    dataset = ray.data.read_images(str(folder), include_paths=True, mode="RGB")
    answers = dataset.map_batches(Transformers, batch_size=BATCH, concurrency=max(cores() // 2, 1), num_cpus=1)
    answers.write_parquet(str(out / "rows"))


WAYS: dict[str, Callable[[Path, Path], None]] = {
    "one process": one_process,
    "ray engine": ray_engine,
    "read_images": read_images,
}


def seconds(way: Callable[[Path, Path], None], folder: Path) -> float:
    with tempfile.TemporaryDirectory() as out:
        started = time.perf_counter()
        way(folder, Path(out))
        return time.perf_counter() - started


def halves(root: Path, images: int, source: Path | None) -> tuple[Path, Path]:
    """Return two folders of images, the second with twice as many as the first."""
    distinct = photos.photos(source, DIFFERENT)
    for name, count in (("small", images), ("large", 2 * images)):
        (root / name).mkdir()
        photos.write(distinct, root / name, count)
    return root / "small", root / "large"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ray.init(num_cpus=cores(), include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as root:
        small, large = halves(Path(root), options.images, options.folder)
        for _ in range(options.rounds):  # in turns: whatever else the machine does falls on all of them
            for name, way in WAYS.items():
                taken[name].append((seconds(way, small), seconds(way, large)))
    rates = {
        name: {
            "whole": median(2 * options.images / whole for _, whole in times),
            "steady": options.images / max(float(np.median([whole - half for half, whole in times])), 1e-9),
        }
        for name, times in taken.items()
    }
    ratios = {
        name: {kind: rate / rates["one process"][kind] for kind, rate in each.items()} for name, each in rates.items()
    }
    if options.json:
        print(json.dumps({"images": 2 * options.images, "cores": cores(), "rates": rates, "ratios": ratios}))
        return
    print(f"{2 * options.images:,} images, {cores()} cores; images a second, and multiples of one process")
    for name, each in rates.items():
        whole, steady = ratios[name]["whole"], ratios[name]["steady"]
        print(
            f"{name:<12} whole {each['whole']:7.1f} ({whole:4.2f} x)   steady {each['steady']:7.1f} ({steady:4.2f} x)"
        )


if __name__ == "__main__":
    main()
