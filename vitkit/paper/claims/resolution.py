"""Claim 10: fine-tuning at a higher resolution helps, with positions interpolated in 2-D (3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from vitkit.grid.arm import Arm
from vitkit.grid.verdict import Finding, greater, reported
from vitkit.paper.claim import Claim, Scale, Setup
from vitkit.paper.datasets import Datasets
from vitkit.paper.evidence import Evidence
from vitkit.paper.figures import draw_scores
from vitkit.paper.settings import SMOKE, THREE_SEEDS
from vitkit.paper.transfer_settings import from_ti16

SIDES: dict[Scale, tuple[int, int]] = {"smoke": (28, 40), "small": (224, 384), "paper": (224, 384)}
SAME, INTERPOLATED, STRETCHED, FRESH = "same resolution", "interpolated in 2-D", "stretched in 1-D", "fresh"
# how positions of the weights reach the higher resolution → the setting load_positions
POSITIONS = {INTERPOLATED: "interpolate", STRETCHED: "stretch", FRESH: "fresh"}
DIFFERS = {
    "smoke": "a toy of two layers, pre-trained for 16 steps on 6,000 images of Fashion-MNIST at 28 px and fine-tuned "
    "for 16 on the same at 28 and 40 px: it shows that the experiment runs, and nothing about the claim",
    "small": "the public Ti/16 (AugReg, ImageNet) on Pets in place of the paper's models on all its sets; the paper "
    "states its procedure, and compares it with none",
    "paper": "B/16 from ImageNet-21k on ImageNet; the paper states its procedure, and compares it with none",
}


def setup(scale: Scale, datasets: Datasets) -> Setup:
    low, high = SIDES[scale]
    start = Arm(name="pre-training", settings=SMOKE) if scale == "smoke" else None  # else public weights
    arms = [Arm(name=SAME, settings=_settings(scale, datasets, low), weights_from=start)]
    for name, transfer in POSITIONS.items():
        changes = {} if transfer == "interpolate" else {"load_positions": transfer}  # the default, as of other claims
        arms.append(Arm(name=name, settings=_settings(scale, datasets, high, **changes), weights_from=start))
    return Setup(arms=tuple(arms), seeds=THREE_SEEDS[scale], differs=DIFFERS[scale])


def _settings(scale: Scale, datasets: Datasets, side: int, **changes: Any) -> dict[str, Any]:
    image = [side, side]
    if scale == "paper":
        data = datasets.find("imagenet")
        return {"data": data, "recipe": "imagenet_transfer_384", "model": "B/16", "image": image, **changes}
    if scale == "smoke":
        own = {name: value for name, value in SMOKE.items() if name not in ("weights", "model", "channels")}
        return {**own, "image": image, **changes}
    return from_ti16(scale, datasets, image=image, steps=500, **changes)


def judge(evidence: Evidence) -> Sequence[Finding]:
    low, high = SIDES[evidence.scale]
    return [
        greater(f"{high} px over {low} px, positions interpolated", evidence.difference(INTERPOLATED, SAME)),
        greater(f"interpolated over fresh positions at {high} px", evidence.difference(INTERPOLATED, FRESH)),
        reported(f"interpolated over stretched positions at {high} px", evidence.difference(INTERPOLATED, STRETCHED)),
        reported(f"stretched over fresh positions at {high} px", evidence.difference(STRETCHED, FRESH)),
    ]


def draw(evidence: Evidence) -> Figure:
    return draw_scores(evidence, "top-1, %", arms=[SAME, *POSITIONS])


CLAIM = Claim(
    number=10,
    name="resolution",
    statement="Fine-tuning at a higher resolution helps, if positions are interpolated in 2-D.",
    source="3.2",
    paper="stated: it is often beneficial to fine-tune at a higher resolution, with positions interpolated in 2-D",
    rule="384 px minus 224 px above 0, and interpolated minus fresh positions above 0; stretched ones are reported",
    setup=setup,
    judge=judge,
    draw=draw,
)
