"""Claim 7: depth helps most and width least; a smaller patch helps without parameters (Fig. 8, D.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from vitkit.grid.arm import Arm
from vitkit.grid.verdict import Finding, greater, reported
from vitkit.paper.claim import Claim, Scale, Setup
from vitkit.paper.datasets import Datasets
from vitkit.paper.evidence import Evidence
from vitkit.paper.figures import draw_curves
from vitkit.paper.settings import DIFFERS, SEEDS, from_scratch

# scale → the model in the middle, and for each dimension its other values
BASES: dict[Scale, dict[str, Any]] = {
    "smoke": {"depth": 2, "width": 32, "mlp": 64, "heads": 2, "patch": 7},
    "small": {"depth": 8, "width": 192, "mlp": 384, "heads": 3, "patch": 8},
    "paper": {"depth": 8, "width": 1024, "mlp": 2048, "heads": 16, "patch": 32},
}
OTHERS: dict[Scale, dict[str, tuple[int, ...]]] = {
    "smoke": {"depth": (4,), "width": (64,), "mlp": (128,), "patch": (4,)},
    "small": {"depth": (4, 16, 32), "width": (96, 384), "mlp": (192, 768), "patch": (16, 4)},
    "paper": {"depth": (4, 16, 32, 64), "width": (256, 512, 2048), "mlp": (512, 1024, 4096), "patch": (16, 8)},
}
BASE = "base"
PAPER = {"depth": "most", "width": "least", "mlp": "between", "patch": "robust gain"}


def setup(scale: Scale, datasets: Datasets) -> Setup:
    arms = [Arm(name=BASE, settings=_settings(scale, datasets, BASES[scale]))]
    for dimension, values in OTHERS[scale].items():
        for value in values:
            arms.append(
                Arm(
                    name=f"{dimension} {value}", settings=_settings(scale, datasets, {**BASES[scale], dimension: value})
                )
            )
    return Setup(arms=tuple(arms), seeds=SEEDS[scale], differs=DIFFERS[scale])


def _settings(scale: Scale, datasets: Datasets, sizes: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in sizes.items() if name != "patch"}
    size = {"smoke": "mu", "small": "Ti", "paper": "L"}[scale]
    return from_scratch(scale, datasets, model=f"{size}/{sizes['patch']}", options=options)


def judge(evidence: Evidence) -> Sequence[Finding]:
    slopes = {dimension: _slopes(evidence, dimension) for dimension in PAPER}
    smaller = min(OTHERS[evidence.scale]["patch"])
    findings = [
        greater(
            "depth over width: gain per doubling of multiply-adds",
            {
                seed: slopes["depth"][seed] - slopes["width"][seed]
                for seed in slopes["depth"]
                if seed in slopes["width"]
            },
        ),
        greater(
            f"patch {smaller} over patch {BASES[evidence.scale]['patch']}",
            evidence.difference(f"patch {smaller}", BASE),
        ),
    ]
    findings += [
        reported(f"{dimension}: gain per doubling of multiply-adds", values, paper=PAPER[dimension])
        for dimension, values in slopes.items()
    ]
    return findings


def _slopes(evidence: Evidence, dimension: str) -> dict[int, float]:
    """Return the least-squares slope of the score over log2 of the multiply-adds, for each seed."""
    names = [BASE, *(name for name in evidence.arms if name.startswith(f"{dimension} "))]
    costs = [math.log2(evidence.arm(name)["macs"]) for name in names]
    centre = sum(costs) / len(costs)
    spread = sum((cost - centre) ** 2 for cost in costs)
    return evidence.per_seed(
        lambda scores: sum((cost - centre) * scores[name] for cost, name in zip(costs, names, strict=True)) / spread
    )


def draw(evidence: Evidence) -> Figure:
    curves = {
        dimension: {
            evidence.arm(name)["macs"] / 1e9: [*evidence.scores(name).values()]
            for name in [BASE, *(name for name in evidence.arms if name.startswith(f"{dimension} "))]
        }
        for dimension in PAPER
    }
    return draw_curves(curves, across="GMACs of one image", up="top-1, %", logarithmic=True)


CLAIM = Claim(
    number=7,
    name="shape",
    statement="Scaling the depth helps most and the width least, and a smaller patch helps without parameters.",
    source="Fig. 8, D.2",
    paper="drawn: 5-shot over compute; depth up to 64 layers, diminishing after 16",
    rule="the gain per doubling of multiply-adds is larger for depth than for width, and a smaller patch is better",
    setup=setup,
    judge=judge,
    draw=draw,
)
