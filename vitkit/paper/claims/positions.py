"""Claim 6: position embeddings matter, their kind hardly does (Table 8, D.4)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from vitkit.grid.arm import Arm
from vitkit.grid.verdict import Finding, equal, greater
from vitkit.paper.claim import Claim, Scale, Setup
from vitkit.paper.datasets import Datasets
from vitkit.paper.evidence import Evidence
from vitkit.paper.figures import draw_scores
from vitkit.paper.settings import DIFFERS, SEEDS, from_scratch

# cell of Table 8 → options of the model, the paper's ImageNet 5-shot score
CELLS = {
    "none": ({"positions": "none"}, 61.382),
    "1-D, stem": ({"positions": "1d", "inject": "stem"}, 64.206),
    "1-D, every layer": ({"positions": "1d", "inject": "every"}, 63.964),
    "1-D, shared": ({"positions": "1d", "inject": "shared"}, 64.292),
    "2-D, stem": ({"positions": "2d", "inject": "stem"}, 64.001),
    "2-D, every layer": ({"positions": "2d", "inject": "every"}, 64.046),
    "2-D, shared": ({"positions": "2d", "inject": "shared"}, 64.022),
    "relative": ({"positions": "relative"}, 64.032),
}
KINDS = [name for name in CELLS if name != "none"]


def setup(scale: Scale, datasets: Datasets) -> Setup:
    if scale == "paper":
        base = {
            "recipe": "imagenet21k_pretrain_90ep",
            "weights": "none",
            "model": "B/16",
            "data": datasets.find("imagenet21k"),
        }
        settings = {name: {**base, "options": options} for name, (options, _) in CELLS.items()}
        differs = (
            "the score is that of the run itself; Table 8 has 5-shot accuracy on ImageNet after pre-training on JFT"
        )
    else:
        settings = {name: from_scratch(scale, datasets, options=options) for name, (options, _) in CELLS.items()}
        differs = DIFFERS[scale] + "; the score is top-1 of the same task, not 5-shot on ImageNet"
    arms = tuple(Arm(name=name, settings=one) for name, one in settings.items())
    return Setup(arms=arms, seeds=SEEDS[scale], differs=differs)


def judge(evidence: Evidence) -> Sequence[Finding]:
    findings = [
        greater(
            f"{name} over none", evidence.difference(name, "none"), paper=f"{CELLS[name][1] - CELLS['none'][1]:+.1f}"
        )
        for name in KINDS
    ]
    for position, first in enumerate(KINDS):
        for second in KINDS[position + 1 :]:
            paper = f"{CELLS[first][1] - CELLS[second][1]:+.1f}"
            findings.append(equal(f"{first} against {second}", evidence.difference(first, second), paper=paper))
    return findings


def draw(evidence: Evidence) -> Figure:
    return draw_scores(evidence, "top-1, %", paper={name: score for name, (_, score) in CELLS.items()})


CLAIM = Claim(
    number=6,
    name="positions",
    statement="Position embeddings help, and their kind makes no difference.",
    source="Table 8",
    paper="5-shot: 61.4 without, 64.0 to 64.3 with any of seven kinds",
    rule="each kind minus none above 0, and all pairs of kinds within ±1 point",
    setup=setup,
    judge=judge,
    draw=draw,
)
