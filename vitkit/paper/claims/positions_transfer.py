"""Claim 16, a reader's question: do 2-D positions help when transferring to small sets?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from vitkit.grid.arm import Arm
from vitkit.grid.statistics import least_squares_slope
from vitkit.grid.verdict import Finding, equal, greater, refuted_if_equal, secondary
from vitkit.paper.claim import Claim, Scale, Setup
from vitkit.paper.datasets import Datasets
from vitkit.paper.evidence import Evidence
from vitkit.paper.figures import draw_curves
from vitkit.paper.settings import SEEDS, TOYS, VIT, trained
from vitkit.paper.transfers import Transfer, transfer

KINDS: dict[str, dict[str, Any]] = {"1-D": {}, "2-D": {"options": {"positions": "2d"}}}  # 1-D is the default
PER_CLASS: dict[Scale, tuple[int, ...]] = {"smoke": (5, 20), "small": (5, 20, 100), "paper": (5, 20, 100)}
SIZES: dict[Scale, tuple[int, int]] = {"smoke": (28, 40), "small": (64, 96), "paper": (224, 384)}
TRANSFERS: dict[Scale, Mapping[str, Any]] = {
    "smoke": {"data": "fashion", "steps": 4, "batch": 16},
    "small": {"data": "cifar100", "steps": 300, "batch": 128},
    "paper": {"data": "cifar100", "recipe": "cifar_transfer"},
}
DIFFERS = {
    "smoke": f"the paper has no such experiment; {TOYS}; the transfer is to images of the same set, at its own size "
    "and at 40 px",
    "small": "the paper has no such experiment; Ti/8 at 64 px, pre-trained on Tiny-ImageNet for 6 epochs, transferred "
    "to CIFAR-100",
    "paper": "the paper has no such experiment; B/16 pre-trained on ImageNet-21k, transferred to CIFAR-100",
}


def setup(scale: Scale, datasets: Datasets) -> Setup:
    arms = []
    for kind, changes in KINDS.items():
        before = Arm(name=f"{kind}: pre-training", settings=_pretraining(scale, datasets, changes))
        for image in SIZES[scale]:
            for number in PER_CLASS[scale]:
                one = Transfer(image=image, per_class=number, **TRANSFERS[scale])
                name = _name(kind, number, image)
                arms.append(Arm(name=name, settings=transfer(one, datasets), weights_from=before))
    return Setup(arms=tuple(arms), seeds=SEEDS[scale], differs=DIFFERS[scale])


def _pretraining(scale: Scale, datasets: Datasets, changes: Mapping[str, Any]) -> dict[str, Any]:
    if scale != "paper":
        return trained(scale, datasets, VIT, **changes)
    base = {"recipe": "imagenet21k_pretrain_90ep", "weights": "none", "model": "B/16"}
    return {**base, "data": datasets.find("imagenet21k"), **changes}


def _name(kind: str, number: int, image: int) -> str:
    return f"{kind}, {number} a class, {image} px"


def judge(evidence: Evidence) -> Sequence[Finding]:
    numbers, sizes = PER_CLASS[evidence.scale], SIZES[evidence.scale]

    def gap(scores: Mapping[str, float], number: int) -> float:
        """Return 2-D minus 1-D, mean over the image sizes."""
        pairs = [[scores[_name(kind, number, image)] for kind in ("2-D", "1-D")] for image in sizes]
        return sum(second - first for second, first in pairs) / len(sizes)

    cells = [
        equal(
            f"2-D against 1-D, {number} a class, {image} px",
            evidence.difference(_name("2-D", number, image), _name("1-D", number, image)),
        )
        for image in sizes
        for number in numbers
    ]
    tenfold = [math.log10(number) for number in numbers]
    fewest = greater(
        f"2-D over 1-D with {numbers[0]} images a class, mean of {sizes[0]} and {sizes[1]} px",
        evidence.per_seed(lambda scores: gap(scores, numbers[0])),
    )
    falls = greater(
        "2-D minus 1-D: its fall with ten times the images",
        evidence.per_seed(
            lambda scores: -least_squares_slope(tenfold, [gap(scores, number) for number in numbers]),
        ),
    )
    return [refuted_if_equal(fewest, cells), refuted_if_equal(falls, cells), *(secondary(cell) for cell in cells)]


def draw(evidence: Evidence) -> Figure:
    curves = {
        f"{kind} positions, {image} px": {
            float(number): [*evidence.scores(_name(kind, number, image)).values()]
            for number in PER_CLASS[evidence.scale]
        }
        for kind in KINDS
        for image in SIZES[evidence.scale]
    }
    return draw_curves(curves, across="training images a class", up="top-1 after transfer, %", logarithmic=True)


CLAIM = Claim(
    number=16,
    name="positions_transfer",
    statement="2-D positions help when a model is transferred to few images.",
    source="a reader's question; D.4",
    paper="Table 8 compares kinds of positions without a transfer to small sets",
    rule="yes if 2-D minus 1-D is above 0 with 5 images a class and falls with more; no if all differences are within "
    "±1 point",
    setup=setup,
    judge=judge,
    draw=draw,
)
