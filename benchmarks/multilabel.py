"""Memory and time of labels at the size of JFT-300M: a multi-label set beside a single-label one of the same images.

    python benchmarks/multilabel.py [--images 3000000] [--classes 18000] [--labels 5] [--batch 512] [--steps 100]
                                    [--source manifest|shards] [--folder DIR] [--json]

Both sets are written first: a CSV manifest that names a few small PNG files again and again, or tar shards (2 KB an
image). Classes are drawn with a long tail. Each set then has a process of its own, which does with it what a run does:

    open       read the source: names, labels, splits and classes
    split      hold out 10 % of the images for testing and 5 % for validation, stratified by the rarest label
    subset     take the stratified subset of 10 % of the training images, and write its fingerprint
    order      go through the order of one epoch over all training images and make the dense rows of every batch
    batches    load batches of the subset with the data loader, images decoded and resized, in one worker process

Memory is the most that the process had resident up to the end of a step. The difference between both sets is what
several labels cost; the size of the dense table that vitkit does not make is printed beside it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FILES = 100  # different images in a manifest
SIDE = 16  # pixels of an image
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=3_000_000)
    parser.add_argument("--classes", type=int, default=18_000)
    parser.add_argument("--labels", type=int, default=5, help="labels of an image of the multi-label set, at most")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100, help="batches that the data loader loads")
    parser.add_argument("--source", choices=("manifest", "shards"), default="manifest")
    parser.add_argument("--folder", type=Path, help="where the sets are written; default: a temporary folder")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # one set, in a process of its own
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure, options.batch, options.steps)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = {name: run(Path(folder), name, options) for name in ("single-label", "multi-label")}
    single, several = (results[name] for name in ("single-label", "multi-label"))
    more = max(several["steps"][step]["mib"] - single["steps"][step]["mib"] for step in several["steps"])
    dense = options.images * options.classes / MIB
    if options.json:
        print(json.dumps({**results, "more_mib": more, "dense_mib": dense}))
        return
    size = f"{options.images:,} images, {options.classes:,} classes, {options.labels} labels an image"
    print(f"{size}, from {'a manifest' if options.source == 'manifest' else 'shards'}\n")
    print(f"{'':<10}{'single-label':>24}{'multi-label':>24}")
    for step, mine in several["steps"].items():
        columns = [f"{one['seconds']:.1f} s, {one['mib']:,.0f} MiB" for one in (single["steps"][step], mine)]
        print(f"{step:<10}{columns[0]:>24}{columns[1]:>24}")
    print(f"\nlabels: {single['labels_mib']:,.0f} and {several['labels_mib']:,.0f} MiB")
    print(f"several labels cost {more:,.0f} MiB at most; a dense table would have {dense:,.0f} MiB")


def run(folder: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Write a set and measure it in a new process, whose memory is that of this set alone."""
    source = write_manifest(folder, options.images, options.classes, options.labels if name == "multi-label" else 1)
    if options.source == "shards":
        source = write_as_shards(source, folder / name)
    command = [sys.executable, __file__, "--measure", str(source)]
    command += ["--batch", str(options.batch), "--steps", str(options.steps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, stdin=subprocess.DEVNULL)
    return json.loads(done.stdout)


def write_manifest(folder: Path, images: int, classes: int, labels: int) -> Path:
    """Write small images and a manifest; with one label each, the column is `label`, else `labels`."""
    random = np.random.default_rng(0)
    for number in range(FILES):
        pixels = random.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    path = folder / f"{labels}.csv"
    with path.open("w", encoding="utf-8") as file:
        file.write("path,label\n" if labels == 1 else "path,labels\n")
        for first in range(0, images, 100_000):
            count = min(100_000, images - first)
            # the square of a uniform number: the first tenth of the classes has a third of the labels
            numbers = (classes * random.random((count, labels)) ** 2).astype(int)
            file.writelines(
                f"{row % FILES:02d}.png,{'|'.join(f'class {number:05d}' for number in own)}\n"
                for row, own in enumerate(numbers.tolist(), first)
            )
    return path


def write_as_shards(source: Path, folder: Path) -> Path:
    from vitkit.data.shard_writer import write_shards
    from vitkit.data.sources.open import open_data

    write_shards(open_data(source), folder)
    return folder


def measure(source: Path, batch: int, steps: int) -> dict[str, Any]:
    """Do what a run does with its data, and measure each step."""
    import torch

    from vitkit.data.batch import Batch
    from vitkit.data.epoch_sampler import EpochSampler
    from vitkit.data.loader import Loader
    from vitkit.data.partition import fingerprint, partition
    from vitkit.data.sources.open import open_data
    from vitkit.data.sparse_labels import SparseLabels
    from vitkit.data.split_dataset import SplitDataset
    from vitkit.data.transforms import TrainTransform

    times: dict[str, dict[str, float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        result = work()
        # Linux counts in KiB, macOS in bytes
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        times[name] = {"seconds": time.monotonic() - began, "mib": peak / MIB}
        return result

    data = timed("open", lambda: open_data(source))
    shares = {"test": 0.1, "dev": 0.05}
    full = timed("split", lambda: partition(data, **shares))

    def subset() -> Any:
        fingerprint(data, "all")
        return partition(data, **shares, subset=0.1)

    part = timed("subset", subset)
    train = full.train

    def order() -> Iterator[int]:
        """Count the labels of all batches of an epoch, from their dense rows."""
        sampler = EpochSampler(len(train), seed=0)
        for step in range(len(train) // batch):
            epochs, indices = np.array(sampler.batch_indices(step, batch)).T
            labels = train.labels[indices]
            rows = Batch(
                images=torch.empty(batch, 0),
                labels=labels if isinstance(labels, SparseLabels) else torch.from_numpy(labels),
                indices=torch.from_numpy(indices),
                epochs=torch.from_numpy(epochs),
            ).targets("cpu")
            yield int(rows.sum()) if rows.ndim == 2 else len(rows)

    seen = timed("order", lambda: sum(order()))
    dataset = SplitDataset(split=part.train, transform=TrainTransform(image=(SIDE, SIDE)))
    loader = Loader(dataset, batch_size=batch, workers=1)
    shapes = timed("batches", lambda: [tuple(one.targets("cpu").shape) for one in itertools.islice(loader, steps)])
    labels = data.splits["all"].labels
    counted = train.labels.numbers if isinstance(train.labels, SparseLabels) else train.labels
    return {
        "steps": times,
        "labels_mib": labels.nbytes / MIB,
        "images": len(labels),
        "classes": len(data.classes),
        "train": len(train),
        "subset": len(part.train),
        "labels_of_an_epoch": [seen, len(counted)],  # without the last images, which do not fill a batch
        "rows": list(shapes[-1]),
    }


if __name__ == "__main__":
    main()
