"""Claim 8: global average pooling equals the class token, each with its own learning rate (Fig. 9, D.3)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from vitkit.grid.arm import Arm
from vitkit.grid.verdict import Finding, equal, greater, reported
from vitkit.paper.claim import Claim, Scale, Setup
from vitkit.paper.datasets import Datasets
from vitkit.paper.evidence import Evidence
from vitkit.paper.figures import draw_curves
from vitkit.paper.settings import DIFFERS, SEEDS, from_scratch

POOLS = {"class token": {"pool": "token"}, "GAP": {"pool": "gap", "class_token": False}}
RATES: dict[Scale, tuple[float, ...]] = {
    "smoke": (1e-3, 3e-3),
    "small": (3e-4, 6e-4, 1e-3, 2e-3),
    "paper": (3e-4, 8e-4, 1e-3, 3e-3),
}


def setup(scale: Scale, datasets: Datasets) -> Setup:
    arms = []
    for pool, options in POOLS.items():
        for rate in RATES[scale]:
            settings = from_scratch(scale, datasets, lr=rate, options=options)
            arms.append(Arm(name=_name(pool, rate), settings=settings))
    return Setup(arms=tuple(arms), seeds=SEEDS[scale], differs=DIFFERS[scale])


def _name(pool: str, rate: float) -> str:
    return f"{pool}, rate {rate:g}"


def judge(evidence: Evidence) -> Sequence[Finding]:
    token, gap = (_best_rate(evidence, pool) for pool in POOLS)
    return [
        equal(
            "GAP against class token, each at its best rate",
            evidence.difference(_name("GAP", gap), _name("class token", token)),
        ),
        greater(
            f"class token minus GAP at the token's best rate, {token:g}",
            evidence.difference(_name("class token", token), _name("GAP", token)),
            paper="a large gap at 8e-4",
        ),
        reported("best rate of the class token", dict.fromkeys(evidence.seeds, token), unit="", paper="8e-4"),
        reported("best rate of GAP", dict.fromkeys(evidence.seeds, gap), unit="", paper="3e-4"),
    ]


def _rates(evidence: Evidence) -> Sequence[float]:
    return RATES[evidence.scale]


def _best_rate(evidence: Evidence, pool: str) -> float:
    """Return the rate with the highest mean; one that diverged for a seed counts as zero there."""

    def mean(rate: float) -> float:
        return sum(evidence.scores(_name(pool, rate)).values()) / len(evidence.seeds)

    return max(_rates(evidence), key=mean)


def draw(evidence: Evidence) -> Figure:
    curves = {
        pool: {rate: [*evidence.scores(_name(pool, rate)).values()] for rate in _rates(evidence)} for pool in POOLS
    }
    return draw_curves(curves, across="learning rate", up="top-1, %", logarithmic=True)


CLAIM = Claim(
    number=8,
    name="class_token",
    statement="Global average pooling does as well as the class token, if each has its own learning rate.",
    source="Fig. 9, D.3",
    paper="drawn: equal at 3e-4 for GAP and 8e-4 for the token",
    rule="GAP and token at their best rates are within ±1 point, and GAP at the token's rate is lower",
    setup=setup,
    judge=judge,
    draw=draw,
)
