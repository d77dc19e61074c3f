"""Does data loading keep up with training? A real run on JPEGs of 500 x 400, compared with one that loads nothing.

    python benchmarks/feed.py [--folder PHOTOS] [--images 20000] [--model B/16] [--batch 256] [--steps N]
                              [--device auto] [--image 224] [--workers N] [--json]

`fed` trains on files as `vitkit fit` does; `ceiling` is the same run with one batch, which is on the device already,
repeated. Both are timed over --steps steps after start-up and, on a GPU, compilation. Batches that were prefetched
until then are dropped first: a full queue would hide workers that are too slow. An empty queue makes the first step
wait once, for as long as a worker takes for a batch, so use many steps. Waiting is the host's; a GPU with queued work
does not feel all of it, so what counts is fed / ceiling.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from photos import photos, write

from vitkit.config.resolve import resolve
from vitkit.config.schema import Fit
from vitkit.data.batch import Batch
from vitkit.data.loader import Loader
from vitkit.data.sources.dataset import Data
from vitkit.data.workers import prefetched_batches
from vitkit.devices import cores, describe_device, pick_device, pick_workers
from vitkit.run_folder import RunFolder
from vitkit.train import trainer
from vitkit.train.distributed import process_group
from vitkit.train.loop import STEPS_BETWEEN_READS

DIFFERENT = 120  # distinct photos; the rest are copies under other names
WARM_UP, STEPS = {"cuda": 20}, {"cuda": 300}  # elsewhere 2, 60


@dataclass
class Watch:
    """When the loop requested each batch, and how long it had waited for batches until then."""

    skip: int  # batches that go by before the clock counts
    requested: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    first: float = 0.0  # seconds until the first batch

    def note(self, waited: float) -> None:
        self.requested.append(time.perf_counter())
        self.waited.append(waited)

    @property
    def seconds(self) -> float:
        return self.requested[-1] - self.requested[self.skip]

    @property
    def waiting(self) -> float:
        return (self.waited[-1] - self.waited[self.skip]) / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--model", default="B/16")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, help=f"{STEPS['cuda']} on a GPU by default, 60 elsewhere")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, help="data workers; default: as many as vitkit fit takes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = pick_device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        different = photos(options.folder, min(DIFFERENT, options.images))
        write(different, Path(folder, "photos"), options.images)
        config, data = settings(Path(folder, "photos"), options, device)
        fed = timed_run(config, data, device, Path(folder, "fed"), repeat=False)
        ceiling = timed_run(config, data, device, Path(folder, "ceiling"), repeat=True)
    images = options.batch * steps_of(options.steps, device)
    speeds = {"fed": images / fed.seconds, "ceiling": images / ceiling.seconds}
    result = {
        "images_per_second": speeds,
        "fed_over_ceiling": speeds["fed"] / speeds["ceiling"],
        "waiting_for_data": fed.waiting,
        "first_batch_seconds": fed.first,
        "model": options.model,
        "image": options.image,
        "batch": options.batch,
        "steps": steps_of(options.steps, device),
        "images": options.images,
        "bytes_each": round(statistics.mean(map(len, different))),
        "workers": pick_workers(options.workers, device, 1),
        "cores": cores(),
        "device": describe_device(device, torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print(json.dumps(result, indent=2) if options.json else describe(result))


def describe(result: dict[str, Any]) -> str:
    speeds = result["images_per_second"]
    return (
        f"{result['model']} at {result['image']} px, batch {result['batch']}, {result['steps']} steps on "
        f"{result['device']}; {result['workers']} workers on {result['cores']} cores\n"
        f"fed from files   {speeds['fed']:>8,.1f} images/s   waiting for data {result['waiting_for_data']:.1%}, "
        f"first batch after {result['first_batch_seconds']:.2f} s\n"
        f"fed with nothing {speeds['ceiling']:>8,.1f} images/s   fed / ceiling {result['fed_over_ceiling']:.3f}"
    )


def settings(folder: Path, options: argparse.Namespace, device: torch.device) -> tuple[Fit, Data]:
    """Return the settings of `vitkit fit FOLDER --weights none` with another length; compiled on a GPU."""
    steps = warm_up(device) + steps_of(options.steps, device) + 1
    config, data, _ = resolve(
        {
            "data": str(folder),
            "weights": "none",
            "model": options.model,
            "image": (options.image,) * 2,
            "batch": options.batch,
            "micro": options.batch,
            "steps": steps,
            "save_every": steps,
            "test": 0.02,
            "device": options.device,
            "workers": options.workers,
            "compile": "yes" if device.type == "cuda" else "no",
            "cache": "no",  # every step decodes; benchmarks/cache.py has the others
        }
    )
    return replace(
        config, epochs=None, choose_lr=False, dev=0.0, patience=0, schedule=replace(config.schedule, warmup=0)
    ), data


def warm_up(device: torch.device) -> int:
    return WARM_UP.get(device.type, 2)


def steps_of(requested: int | None, device: torch.device) -> int:
    """Return the steps to time; on a GPU a multiple of ten, for the loop reads its losses at every tenth step."""
    requested = requested or STEPS.get(device.type, 60)
    return -(-requested // STEPS_BETWEEN_READS) * STEPS_BETWEEN_READS if device.type == "cuda" else requested


def timed_run(config: Fit, data: Data, device: torch.device, path: Path, *, repeat: bool) -> Watch:
    """Time one run, with its loader observed, or replaced by one batch on the device."""
    watch = Watch(warm_up(device))
    theirs, trainer.Loader = trainer.Loader, repeated_batch(watch, device) if repeat else observed(watch)
    try:
        with process_group(device) as processes, closing(RunFolder.create(path)) as folder:
            trainer.train(config, data, folder, processes, lambda name, text: None)
    finally:
        trainer.Loader = theirs
    return watch


def observed(watch: Watch) -> type[Loader]:
    class ObservedLoader(Loader):
        def __iter__(self) -> Generator[Batch, None, None]:
            with closing(super().__iter__()) as batches:
                while True:
                    if len(watch.requested) == watch.skip and self.workers:
                        for _ in range(prefetched_batches(self.workers)):
                            next(batches)
                    watch.note(self.wait_seconds)
                    batch = next(batches)
                    watch.first = watch.first or self.wait_seconds
                    yield batch

    return ObservedLoader


def repeated_batch(watch: Watch, device: torch.device) -> type[Loader]:
    class RepeatedBatch(Loader):
        def __iter__(self) -> Generator[Batch, None, None]:
            batch = next(iter(Loader(self.dataset, self.batch_size))).to(device)
            while True:
                watch.note(0.0)
                yield batch

    return RepeatedBatch


if __name__ == "__main__":
    main()
