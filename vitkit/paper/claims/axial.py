"""Claim 9: axial attention beats the plain model, at more compute (Fig. 13, D.6)."""

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
from vitkit.paper.settings import DIFFERS, SEEDS, from_scratch

PLAIN, AXIAL, DEEP = "plain", "axial", "plain, twice as deep"
DEPTHS: dict[Scale, int] = {"smoke": 2, "small": 12, "paper": 12}


def setup(scale: Scale, datasets: Datasets) -> Setup:
    options: dict[str, dict[str, Any]] = {PLAIN: {}, AXIAL: {"axial": True}, DEEP: {"depth": 2 * DEPTHS[scale]}}
    pool = {"pool": "gap", "class_token": False}  # a class token is in no row and no column
    arms = tuple(
        Arm(name=name, settings=from_scratch(scale, datasets, options={**pool, **one})) for name, one in options.items()
    )
    return Setup(arms=arms, seeds=SEEDS[scale], differs=DIFFERS[scale])


def judge(evidence: Evidence) -> Sequence[Finding]:
    ratio = evidence.arm(AXIAL)["macs"] / evidence.arm(PLAIN)["macs"]
    deeper = evidence.arm(DEEP)["macs"] / evidence.arm(PLAIN)["macs"]
    return [
        greater(
            f"axial over plain, at {ratio:.2f} times its multiply-adds",
            evidence.difference(AXIAL, PLAIN),
            paper="above 0",
        ),
        reported(
            f"axial over twice the depth, which takes {deeper:.2f} times",
            evidence.difference(AXIAL, DEEP),
            paper="not tried",
        ),
    ]


def draw(evidence: Evidence) -> Figure:
    return draw_scores(evidence, "top-1, %")


CLAIM = Claim(
    number=9,
    name="axial",
    statement="Axial attention does better than the plain model, and costs more compute.",
    source="Fig. 13, D.6",
    paper="drawn: Axial-ViT-B/32 and B/16 above their plain counterparts, at more compute",
    rule="axial minus plain above 0; twice the depth at nearly equal compute is reported beside it",
    setup=setup,
    judge=judge,
    draw=draw,
)
