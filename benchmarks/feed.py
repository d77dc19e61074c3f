"""Does reading keep up with training? vitkit's real run on JPEGs of 500 x 400, beside the same one that reads nothing.

    python benchmarks/feed.py [--folder PHOTOS] [--pictures 20000] [--model B/16] [--batch 256] [--steps N]
                              [--device auto] [--image 224] [--readers N] [--json]

`fed` trains on files as `vitkit fit` does; `ceiling` is the same run given one batch, which is on the device already,
again and again. Both are timed over --steps steps that follow start-up and, on a GPU, compilation. What was read
meanwhile is thrown away first: a full store would hide readers that are too slow. An empty one makes the first of the
steps wait once, for as long as a reader takes for a batch; so there are to be many. Waiting is the host's; a GPU that
still has work queued does not feel all of it, so what counts is fed / ceiling.
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
from vitkit.data.loader import Batch, Loader
from vitkit.data.readers import in_flight
from vitkit.data.sources.base import Data
from vitkit.devices import cores, describe_device, pick_device, pick_readers
from vitkit.run_folder import RunFolder
from vitkit.train import trainer
from vitkit.train.distributed import joined
from vitkit.train.loop import BETWEEN_READINGS

DIFFERENT = 120  # photos; the rest are copies under other names
WARM_UP, STEPS = {"cuda": 20}, {"cuda": 300}  # elsewhere 2, 60


@dataclass
class Watch:
    """When the loop asked for each batch, and how long it had waited for batches until then."""

    skip: int  # batches that go by before the clock counts
    asked: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    first: float = 0.0  # seconds until the first batch

    def note(self, waited: float) -> None:
        self.asked.append(time.perf_counter())
        self.waited.append(waited)

    @property
    def seconds(self) -> float:
        return self.asked[-1] - self.asked[self.skip]

    @property
    def waiting(self) -> float:
        return (self.waited[-1] - self.waited[self.skip]) / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--pictures", type=int, default=20_000)
    parser.add_argument("--model", default="B/16")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, help=f"{STEPS['cuda']} on a GPU unless said, 60 elsewhere")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--readers", type=int, help="reader processes; as many as vitkit fit takes, unless said")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = pick_device(options.device)
    with tempfile.TemporaryDirectory() as place:
        different = photos(options.folder, min(DIFFERENT, options.pictures))
        write(different, Path(place, "photos"), options.pictures)
        config, data = settings(Path(place, "photos"), options, device)
        fed = timed(config, data, device, Path(place, "fed"), still=False)
        ceiling = timed(config, data, device, Path(place, "ceiling"), still=True)
    seen = options.batch * steps_of(options.steps, device)
    speeds = {"fed": seen / fed.seconds, "ceiling": seen / ceiling.seconds}
    found = {
        "pictures_per_second": speeds,
        "fed_over_ceiling": speeds["fed"] / speeds["ceiling"],
        "waiting_for_data": fed.waiting,
        "first_batch_seconds": fed.first,
        "model": options.model,
        "image": options.image,
        "batch": options.batch,
        "steps": steps_of(options.steps, device),
        "pictures": options.pictures,
        "bytes_each": round(statistics.mean(map(len, different))),
        "readers": pick_readers(options.readers, device, 1),
        "cores": cores(),
        "device": describe_device(device, torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print(json.dumps(found, indent=2) if options.json else in_words(found))


def in_words(found: dict[str, Any]) -> str:
    speeds = found["pictures_per_second"]
    return (
        f"{found['model']} at {found['image']} px, batch {found['batch']}, {found['steps']} steps on "
        f"{found['device']}; {found['readers']} readers on {found['cores']} cores\n"
        f"fed from files   {speeds['fed']:>8,.1f} pictures/s   waiting for data {found['waiting_for_data']:.1%}, "
        f"first batch after {found['first_batch_seconds']:.2f} s\n"
        f"fed with nothing {speeds['ceiling']:>8,.1f} pictures/s   fed / ceiling {found['fed_over_ceiling']:.3f}"
    )


def settings(folder: Path, options: argparse.Namespace, device: torch.device) -> tuple[Fit, Data]:
    """Those of `vitkit fit FOLDER --weights none`, but for the length; compiled on a GPU, to be as fast as can be."""
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
            "workers": options.readers,
            "compile": "yes" if device.type == "cuda" else "no",
        }
    )
    return replace(
        config, epochs=None, choose_lr=False, dev=0.0, patience=0, schedule=replace(config.schedule, warmup=0)
    ), data


def warm_up(device: torch.device) -> int:
    return WARM_UP.get(device.type, 2)


def steps_of(asked: int | None, device: torch.device) -> int:
    """On a GPU the clock is right where the loop reads its losses, at every tenth step."""
    asked = asked or STEPS.get(device.type, 60)
    return -(-asked // BETWEEN_READINGS) * BETWEEN_READINGS if device.type == "cuda" else asked


def timed(config: Fit, data: Data, device: torch.device, place: Path, *, still: bool) -> Watch:
    """One training trainer, its loader watched, or replaced by one batch on the device."""
    watch = Watch(warm_up(device))
    theirs, trainer.Loader = trainer.Loader, standing_still(watch, device) if still else watched(watch)
    try:
        with joined(device) as processes, closing(RunFolder.create(place)) as folder:
            trainer.train(config, data, folder, processes, lambda name, text: None)
    finally:
        trainer.Loader = theirs
    return watch


def watched(watch: Watch) -> type[Loader]:
    class Watched(Loader):
        def __iter__(self) -> Generator[Batch, None, None]:
            with closing(super().__iter__()) as batches:
                while True:
                    if len(watch.asked) == watch.skip and self.workers:
                        for _ in range(in_flight(self.workers)):
                            next(batches)
                    watch.note(self.waited)
                    batch = next(batches)
                    watch.first = watch.first or self.waited
                    yield batch

    return Watched


def standing_still(watch: Watch, device: torch.device) -> type[Loader]:
    class StandingStill(Loader):
        def __iter__(self) -> Generator[Batch, None, None]:
            batch = self.at(0).to(device)
            while True:
                watch.note(0.0)
                yield batch

    return StandingStill


if __name__ == "__main__":
    main()
