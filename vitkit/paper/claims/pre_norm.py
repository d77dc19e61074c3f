"""Claim 14, a reader's question: why pre-norm? Pre and post norm at two depths and several rates."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from vitkit.grid.arm import Arm
from vitkit.grid.verdict import Finding, greater, reported
from vitkit.paper.claim import Claim, Scale, Setup
from vitkit.paper.datasets import Datasets
from vitkit.paper.evidence import Evidence
from vitkit.paper.figures import draw_curves
from vitkit.paper.settings import DIFFERS, THREE_SEEDS, from_scratch

NORMS = ("pre", "post")
DEPTHS: dict[Scale, tuple[int, ...]] = {"smoke": (2, 4), "small": (12, 24), "paper": (12, 24)}
RATES: dict[Scale, tuple[float, ...]] = {
    "smoke": (1e-3, 1e-2),
    "small": (3e-4, 1e-3, 3e-3),
    "paper": (3e-4, 1e-3, 3e-3),
}


def setup(scale: Scale, datasets: Datasets) -> Setup:
    arms = []
    for norm in NORMS:
        for depth in DEPTHS[scale]:
            for rate in RATES[scale]:
                options = {"norm": norm, "depth": depth}
                settings = from_scratch(scale, datasets, lr=rate, options=options)
                arms.append(Arm(name=_name(norm, depth, rate), settings=settings))
    differs = f"the paper has no such experiment; {DIFFERS[scale]}"
    return Setup(arms=tuple(arms), seeds=THREE_SEEDS[scale], differs=differs)


def _name(norm: str, depth: int, rate: float) -> str:
    return f"{norm}-norm, {depth} layers, rate {rate:g}"


def judge(evidence: Evidence) -> Sequence[Finding]:
    findings = []
    for depth in DEPTHS[evidence.scale]:
        best = {norm: _best(evidence, norm, depth) for norm in NORMS}
        findings.append(
            greater(
                f"pre over post with {depth} layers, each at its best rate ({best['pre']:g}, {best['post']:g})",
                evidence.difference(_name("pre", depth, best["pre"]), _name("post", depth, best["post"])),
            )
        )
    for norm in NORMS:
        names = [name for name in evidence.arms if name.startswith(f"{norm}-norm")]
        share = {
            seed: 100 * sum(seed in evidence.arm(name)["diverged"] for name in names) / len(names)
            for seed in evidence.seeds
        }
        findings.append(reported(f"runs of {norm}-norm that diverged", share, unit="%"))
    return findings


def _best(evidence: Evidence, norm: str, depth: int) -> float:
    return max(
        RATES[evidence.scale],
        key=lambda rate: sum(evidence.scores(_name(norm, depth, rate)).values()) / len(evidence.seeds),
    )


def draw(evidence: Evidence) -> Figure:
    curves = {
        f"{norm}-norm, {depth} layers": {
            rate: [*evidence.scores(_name(norm, depth, rate)).values()] for rate in RATES[evidence.scale]
        }
        for norm in NORMS
        for depth in DEPTHS[evidence.scale]
    }
    return draw_curves(curves, across="learning rate", up="top-1, %", logarithmic=True)


CLAIM = Claim(
    number=14,
    name="pre_norm",
    statement="Pre-norm trains deep models that post-norm does not.",
    source="a reader's question; eq. 2 and 3",
    paper="uses pre-norm, without a comparison",
    rule="pre minus post at the best rate above 0 at both depths; the share of runs that diverged is reported",
    setup=setup,
    judge=judge,
    draw=draw,
)
