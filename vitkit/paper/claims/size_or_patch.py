"""Claim 15, a reader's question: was it L to H, or /16 to /14? A 2x2 with the paper's exact ratios."""

from __future__ import annotations

import math
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

# H over L is 32/24 layers and 1280/1024 in width: 4/3 and 5/4
SIZES: dict[Scale, dict[str, dict[str, int]]] = {
    "smoke": {
        "smaller": {"depth": 3, "width": 32, "mlp": 128, "heads": 2},
        "larger": {"depth": 4, "width": 40, "mlp": 160, "heads": 2},
    },
    "small": {
        "smaller": {"depth": 12, "width": 192, "mlp": 768, "heads": 3},
        "larger": {"depth": 16, "width": 240, "mlp": 960, "heads": 3},
    },
    "paper": {
        "smaller": {"depth": 24, "width": 1024, "mlp": 4096, "heads": 16},
        "larger": {"depth": 32, "width": 1280, "mlp": 5120, "heads": 16},
    },
}
PATCHES: dict[Scale, tuple[int, int]] = {"smoke": (8, 7), "small": (8, 7), "paper": (16, 14)}  # 16/14 = 8/7
IMAGE: dict[Scale, int] = {"smoke": 56, "small": 56, "paper": 224}
FAMILY: dict[Scale, str] = {"smoke": "mu", "small": "Ti", "paper": "L"}


def setup(scale: Scale, datasets: Datasets) -> Setup:
    arms = []
    for size, options in SIZES[scale].items():
        for patch in PATCHES[scale]:
            model = f"{FAMILY[scale]}/{patch}"
            side = [IMAGE[scale]] * 2
            settings: dict[str, Any] = (
                {
                    "recipe": "jft_pretrain_14ep",
                    "weights": "none",
                    "data": datasets.find("jft"),
                    "model": "L/16",  # whose row of Table 3 all four take
                    "options": {**options, "patch": patch},
                }
                if scale == "paper"
                else from_scratch(scale, datasets, model=model, image=side, options=options)
            )
            arms.append(Arm(name=_name(size, patch), settings=settings))
    differs = "the paper has L/16 and H/14 alone" + ("" if scale == "paper" else f"; {DIFFERS[scale]}, at 56 px")
    return Setup(arms=tuple(arms), seeds=SEEDS[scale], differs=differs)


def _name(size: str, patch: int) -> str:
    return f"{size}, /{patch}"


def judge(evidence: Evidence) -> Sequence[Finding]:
    coarse, fine = PATCHES[evidence.scale]
    corner = {
        "base": _name("smaller", coarse),
        "size": _name("larger", coarse),
        "patch": _name("smaller", fine),
        "both": _name("larger", fine),
    }

    def effect(first: str, second: str) -> dict[int, float]:
        return evidence.difference(corner[first], corner[second])

    macs = {name: math.log2(evidence.arm(arm)["macs"]) for name, arm in corner.items()}
    return [
        greater("size effect minus patch effect", evidence.difference(corner["size"], corner["patch"])),
        reported("size alone", effect("size", "base")),
        reported("patch alone", effect("patch", "base")),
        reported("both together", effect("both", "base"), paper="+0.79 (87.76 → 88.55)"),
        reported(
            "interaction: both, beyond the sum of the two",
            evidence.per_seed(lambda s: s[corner["both"]] - s[corner["size"]] - s[corner["patch"]] + s[corner["base"]]),
        ),
        reported(
            "size minus patch, per doubling of multiply-adds",
            evidence.per_seed(
                lambda s: (
                    (s[corner["size"]] - s[corner["base"]]) / (macs["size"] - macs["base"])
                    - (s[corner["patch"]] - s[corner["base"]]) / (macs["patch"] - macs["base"])
                )
            ),
        ),
    ]


def draw(evidence: Evidence) -> Figure:
    return draw_scores(evidence, "top-1, %")


CLAIM = Claim(
    number=15,
    name="size_or_patch",
    statement="From L/16 to H/14 it is the size that helps, more than the smaller patch.",
    source="a reader's question; Table 2",
    paper="87.76 → 88.55 on ImageNet for both steps together",
    rule="the size effect minus the patch effect excludes 0; the interaction and the effects per FLOP are reported",
    setup=setup,
    judge=judge,
    draw=draw,
)
