"""The rough cost of a claim at a scale, in closed form: no data are opened, and nothing is measured or trained.

A run takes six floating-point operations for each multiply-add and image (`vitkit.cost`), at the rate below, and some
seconds besides. `--dry-run` measures instead, on the machine and with the data at hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.config import toml
from vitkit.config.expectations import IMAGES
from vitkit.config.recipes import recipe
from vitkit.config.resolve import DEFAULT_MODEL
from vitkit.cost import FLOPS_PER_TRAINED_MAC, cost
from vitkit.data.subset import subset_size
from vitkit.grid.arm import Trial, trials_of
from vitkit.grid.estimate import settings_without_weights
from vitkit.model.variants import configure
from vitkit.paper.claim import Claim, Scale
from vitkit.paper.datasets import Datasets

# FLOP/s, seconds of a run besides its steps, on what: rounded from the smoke runs of a toy on one core, and from the
# fine-tuning of Ti/16 (docs/pets.md) and Ti/8 at 64 px on an H200, which lie a factor of two on either side
SPEEDS: dict[Scale, tuple[float, float, str]] = {
    "smoke": (2e10, 1.0, "one core"),
    "small": (1e14, 5.0, "an H200"),
    "paper": (1e14, 5.0, "an H200"),
}
# training images and classes
SIZES = {
    "fashion": (6_000, 10),
    "tiny-imagenet": (100_000, 200),
    "cifar10": (50_000, 10),
    "cifar100": (50_000, 100),
    "pets": (3_680, 37),
    "flowers": (2_040, 102),
    "imagenet": (IMAGES["ImageNet"], 1_000),
    "imagenet21k": (IMAGES["ImageNet-21k"], 21_841),
    "jft": (IMAGES["JFT-300M"], 18_291),
}


@dataclass(frozen=True)
class AssumedDatasets(Datasets):
    """Data sets that need not be there: each is found under its name."""

    def find(self, name: str, *, as_published: bool = False) -> str:
        return name


@dataclass(frozen=True, kw_only=True)
class RoughCost:
    runs: int
    images: int  # seen in training, over all runs
    seconds: float


def rough_cost(claim: Claim, scale: Scale) -> RoughCost:
    """Return about what a claim takes, if none of its runs is shared with another."""
    setup = claim.setup(scale, AssumedDatasets(Path()))
    rate, besides, _ = SPEEDS[scale]
    trials = trials_of(setup.arms, setup.seeds)
    counted = [_images_and_flops(trial) for trial in trials]
    measurements = len(setup.seeds) * (claim.measure is not None)
    return RoughCost(
        runs=len(trials),
        images=sum(images for images, _ in counted),
        seconds=sum(flops for _, flops in counted) / rate + besides * (len(trials) + measurements),
    )


def _images_and_flops(trial: Trial) -> tuple[int, float]:
    settings: dict[str, Any] = settings_without_weights(trial)
    base = recipe(settings["recipe"], settings.get("model") or None)
    config = toml.from_tables(toml.merge(toml.to_tables(base), settings))
    available, classes = SIZES[config.data]
    used = subset_size(available, classes, config.subset, config.subset_per_class, config.subset_images)
    images = config.steps * config.batch if config.steps else round((config.epochs or 0) * used)
    size = {"image": config.image, "channels": config.channels}
    shape = {name: value for name, value in size.items() if value is not None}
    macs = cost(configure(config.model or DEFAULT_MODEL, **shape, **config.options)).macs
    return images, float(FLOPS_PER_TRAINED_MAC) * macs * images


def describe_estimate() -> str:
    """Return how the seconds come about, for people."""
    rates = [
        f"{scale}: {rate / 1e9:,.0f} GFLOP/s ({device}) and {besides:g} s a run"
        for scale, (rate, besides, device) in SPEEDS.items()
    ]
    return f"Times are rough: six operations for each multiply-add and image. {'; '.join(rates)}."


def rough_duration(seconds: float) -> str:
    """Return 4,213 seconds as "70 min": one unit, two figures, for what is not known better."""
    units = ((1, "s", 100), (60, "min", 100), (3600, "h", 50), (86_400, "days", math.inf))
    number, unit = next((seconds / size, unit) for size, unit, below in units if seconds / size < below)
    digits = max(math.floor(math.log10(number)) - 1, 0) if number >= 1 else 0
    return f"{round(number, -digits):,.0f} {unit}"
