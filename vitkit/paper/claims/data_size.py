"""Claim 2: with little data a ViT is below a ResNet, and the gap closes with data (Fig. 3, 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from vitkit.grid.arm import Arm
from vitkit.grid.statistics import least_squares_slope
from vitkit.grid.verdict import Finding, greater, reported
from vitkit.paper.claim import Claim, Scale, Setup
from vitkit.paper.datasets import Datasets
from vitkit.paper.evidence import Evidence
from vitkit.paper.figures import draw_curves
from vitkit.paper.settings import ALL_IMAGES, RESNET, THREE_SEEDS, TITLES, TOYS, VIT, trained

IMAGES: dict[Scale, tuple[int, ...]] = {
    "smoke": (200, 1_000, ALL_IMAGES["smoke"]),
    "small": (5_000, 25_000, ALL_IMAGES["small"]),
    "paper": (9_000_000, 30_000_000, 90_000_000, ALL_IMAGES["paper"]),  # Fig. 4
}
NAMES = {**TITLES, "paper": {VIT: "B/32", RESNET: "R50x1"}}
PAPER_STEPS = 7 * ALL_IMAGES["paper"] // 4096  # seven epochs of all images
DIFFERS = {
    "smoke": TOYS,
    "small": "Ti/8 and R50x1 at 64 px on 5,000 to 100,000 images of Tiny-ImageNet for 6 epochs of all of them; the "
    "score is top-1 of the same task at the last step, where the paper has 5-shot accuracy on ImageNet at the best",
    "paper": "the score is top-1 of the same task at the last step, where the paper has 5-shot accuracy on ImageNet at "
    "the best",
}


def setup(scale: Scale, datasets: Datasets) -> Setup:
    arms = tuple(
        Arm(name=_name(model, images), settings=_settings(scale, datasets, model, images))
        for model in (VIT, RESNET)
        for images in IMAGES[scale]
    )
    return Setup(arms=arms, seeds=THREE_SEEDS[scale], differs=DIFFERS[scale])


def _settings(scale: Scale, datasets: Datasets, model: str, images: int) -> dict[str, Any]:
    if scale != "paper":
        return trained(scale, datasets, model, images=images)
    share = images / ALL_IMAGES["paper"]
    return {
        "recipe": "jft_pretrain_7ep",
        "weights": "none",
        "model": NAMES["paper"][model],
        "data": datasets.find("jft"),
        "steps": PAPER_STEPS,
        **({"subset": share} if share < 1 else {}),
    }


def _name(model: str, images: int) -> str:
    return f"{model}, {images:,} images"


def judge(evidence: Evidence) -> Sequence[Finding]:
    sizes = IMAGES[evidence.scale]
    fewest, most = sizes[0], sizes[-1]

    def gaps(scores: Mapping[str, float]) -> list[float]:
        """Return ViT minus ResNet for each number of images."""
        return [scores[_name(VIT, images)] - scores[_name(RESNET, images)] for images in sizes]

    tenfold = [math.log10(images) for images in sizes]
    crossings = {
        seed: images
        for seed, images in evidence.per_seed(lambda scores: _crossing(tenfold, gaps(scores))).items()
        if math.isfinite(images)
    }
    return [
        greater(
            f"ResNet over ViT with {fewest:,} images",
            evidence.difference(_name(RESNET, fewest), _name(VIT, fewest)),
            paper="above 0",
        ),
        greater(
            "ViT minus ResNet: its change with ten times the images",
            evidence.per_seed(lambda scores: least_squares_slope(tenfold, gaps(scores))),
            paper="above 0",
        ),
        reported(
            f"ViT over ResNet with {most:,} images",
            evidence.difference(_name(VIT, most), _name(RESNET, most)),
            paper="above 0 from 90 million images",
        ),
        reported(
            f"images from which the ViT is ahead, between {fewest:,} and {most:,}, for {len(crossings)} of "
            f"{len(evidence.seeds)} seeds",
            crossings,
            unit="images",
            paper="between 9 and 90 million",
        ),
    ]


def _crossing(tenfold: Sequence[float], gaps: Sequence[float]) -> float:
    """Return the number of images at which the gap goes from below zero to above it, or nan."""
    for (left, below), (right, above) in zip(
        zip(tenfold, gaps, strict=True), list(zip(tenfold, gaps, strict=True))[1:], strict=False
    ):
        if below < 0 <= above:
            return float(10 ** (left + (right - left) * below / (below - above)))
    return math.nan


def draw(evidence: Evidence) -> Figure:
    """Draw Fig. 4: the score over the number of images."""
    curves = {
        NAMES[evidence.scale][model]: {
            float(images): [*evidence.scores(_name(model, images)).values()] for images in IMAGES[evidence.scale]
        }
        for model in (VIT, RESNET)
    }
    return draw_curves(curves, across="training images", up="top-1, %", logarithmic=True)


CLAIM = Claim(
    number=2,
    name="data_size",
    statement="With little data a ViT is below a ResNet, and with more data the gap closes.",
    source="Fig. 3, 4",
    paper="drawn: B/32 below R50x1 on 9 million images of JFT, above it from 90 million",
    rule="the ResNet is better with the fewest images, and the slope of ViT minus ResNet over log n is above 0; the "
    "crossing is reported, not required",
    setup=setup,
    judge=judge,
    draw=draw,
)
