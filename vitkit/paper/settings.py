"""Settings that the arms of several claims share; equal settings are one run, whichever claims ask for it."""

from __future__ import annotations

from typing import Any, Literal

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
    "epochs": 6,  # a minute at most, so that there is time for five seeds
    "batch": 256,
    "lr": 0.001,
    "augment": {"crop": [0.5, 1.0], "randaugment": False, "mixup": 0.0},  # six epochs are too few for more
    "save_every": 1_000_000,
    "score_every": 1_000_000,  # its score is the one at its end; twenty validations take as long as a short run
    "duplicates": "ignore",
    "schedule": {"warmup": 0.1},
}
SEEDS = {"smoke": (0, 1), "small": (0, 1, 2, 3, 4), "paper": (0, 1, 2)}
DIFFERS = {
    "smoke": "a toy of two layers for 16 steps on 6,000 images of Fashion-MNIST: it shows that the experiment runs, "
    "and nothing about the claim",
    "small": "Ti/8 at 64 px on the 100,000 images of Tiny-ImageNet for 6 epochs, from scratch",
    "paper": "on ImageNet from scratch, where the paper pre-trains on JFT-300M",
}


# claims on data and compute (2 to 5, 11, 16) train the same models for the same numbers of steps, and share the runs
VIT, LARGER, HYBRID, RESNET = "ViT", "larger ViT", "hybrid", "ResNet"
MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        VIT: {"model": "mu/4"},
        LARGER: {"model": "mu/4", "options": {"width": 64, "mlp": 256}},
        HYBRID: {"model": "R+mu/16", "options": {"patch": 1}},
        RESNET: {"model": "R50x1", "options": {"body": {"layers": [1, 1], "width": 32}}},
    },
    "small": {
        VIT: {"model": "Ti/8"},
        LARGER: {"model": "S/8"},
        HYBRID: {"model": "R+Ti/16", "options": {"patch": 2}},  # as many tokens as Ti/8, nearly its multiply-adds
        RESNET: {"model": "R50x1"},
    },
}
TITLES: dict[str, dict[str, str]] = {
    "smoke": {
        VIT: "mu/4",
        LARGER: "mu/4, twice as wide",
        HYBRID: "R+mu/16 with patch 1",
        RESNET: "a ResNet of two units",
    },
    "small": {VIT: "Ti/8", LARGER: "S/8", HYBRID: "R+Ti/16 with patch 2", RESNET: "R50x1"},
}
Length = Literal["short", "base", "long"]
STEPS: dict[str, dict[Length, int]] = {
    "smoke": {"short": 4, "base": 8, "long": 16},
    "small": {"short": 391, "base": 2344, "long": 4688},  # 1, 6 and 12 epochs of 100,000 images
}
ALL_IMAGES = {"smoke": 6_000, "small": 100_000, "paper": 303_000_000}  # of fashion, Tiny-ImageNet and JFT-300M
THREE_SEEDS = {"smoke": (0, 1), "small": (0, 1, 2), "paper": (0, 1, 2)}  # where runs take minutes
TOYS = (
    "toys of two layers for a few steps on up to 6,000 images of Fashion-MNIST, the ResNet of two units: it shows that "
    "the experiment runs, and nothing about the claim"
)


def trained(
    scale: Literal["smoke", "small"],
    datasets: Datasets,
    model: str,
    length: Length = "base",
    *,
    images: int | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return the settings of one of `MODELS`, trained from scratch on all images, or on some of each class."""
    subset = {} if images in (None, ALL_IMAGES[scale]) else {"subset": images / ALL_IMAGES[scale]}
    settings = {**MODELS[scale][model], "steps": STEPS[scale][length], **subset}
    return from_scratch(scale, datasets, **toml.merge(settings, changes))


def from_scratch(scale: Scale, datasets: Datasets, **changes: Any) -> dict[str, Any]:
    """Return the settings of training from scratch at a scale, with changes."""
    if scale == "smoke":
        return toml.merge(SMOKE, changes)
    base = {**SMALL, "data": datasets.find("tiny-imagenet")} if scale == "small" else _paper(datasets)
    return toml.merge(base, changes)


def _paper(datasets: Datasets) -> dict[str, Any]:
    """Return Table 3's row for ImageNet, the largest set of the paper that is public."""
    return {"recipe": "imagenet_pretrain", "weights": "none", "model": "B/16", "data": datasets.find("imagenet")}
