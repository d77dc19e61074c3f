"""Settings that the arms of several claims share; equal settings are one run, whichever claims ask for it."""

from __future__ import annotations

from typing import Any

from vitkit.config import toml
from vitkit.paper.claim import Scale
from vitkit.paper.datasets import Datasets

# seconds on two cores: the small set inside the package, a toy model, no search for copies
SMOKE: dict[str, Any] = {
    "data": "fashion",
    "weights": "none",
    "recipe": "small_scratch",
    "model": "mu/4",
    "image": [28, 28],
    "channels": 1,
    "steps": 16,
    "batch": 32,
    "save_every": 1_000_000,
    "workers": 0,
    "duplicates": "ignore",
    "augment": {"randaugment": False, "mixup": 0.0, "cutmix": 0.0},
    "schedule": {"warmup": 2},
}
# minutes on one GPU: Ti/8 on Tiny-ImageNet at 64 px has the tokens of Ti/4 at 32 px
SMALL: dict[str, Any] = {
    "weights": "none",
    "recipe": "small_scratch",
    "model": "Ti/8",
    "image": [64, 64],
    "epochs": 20,
    "batch": 1024,
    "lr": 0.001,
    "save_every": 1_000_000,
    "duplicates": "ignore",
    "schedule": {"warmup": 0.1},
}
SEEDS = {"smoke": (0, 1), "small": (0, 1, 2, 3, 4), "paper": (0, 1, 2)}
DIFFERS = {
    "smoke": "a toy of two layers for 16 steps on 6,000 images of Fashion-MNIST: it shows that the experiment runs, "
    "and nothing about the claim",
    "small": "Ti/8 at 64 px on the 100,000 images of Tiny-ImageNet, from scratch",
    "paper": "on ImageNet from scratch, where the paper pre-trains on JFT-300M",
}


def from_scratch(scale: Scale, datasets: Datasets, **changes: Any) -> dict[str, Any]:
    """Return the settings of training from scratch at a scale, with changes."""
    if scale == "smoke":
        return toml.merge(SMOKE, changes)
    base = {**SMALL, "data": datasets.find("tiny-imagenet")} if scale == "small" else _paper(datasets)
    return toml.merge(base, changes)


def _paper(datasets: Datasets) -> dict[str, Any]:
    """Return Table 3's row for ImageNet, the largest set of the paper that is public."""
    return {"recipe": "imagenet_pretrain", "weights": "none", "model": "B/16", "data": datasets.find("imagenet")}
