"""Claim 5: ResNets that Adam pre-trained transfer at least as well as those of SGD (Table 7, D.1)."""

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
from vitkit.paper.settings import RESNET, THREE_SEEDS, TOYS, trained
from vitkit.paper.transfers import Transfer, transfer

OPTIMIZERS = ("Adam", "SGD")
SGD = {"kind": "sgd", "momentum": 0.9, "weight_decay": 1e-4}  # BiT's
RATES: dict[Scale, dict[str, tuple[float, ...]]] = {
    "smoke": {"Adam": (0.001, 0.003), "SGD": (0.03, 0.1)},
    "small": {"Adam": (0.0003, 0.001), "SGD": (0.03, 0.1)},
    "paper": {"Adam": (0.001,), "SGD": (0.48,)},  # Table 3; BiT's 0.03 for each 256 images of a batch
}
SETS: dict[Scale, dict[str, Transfer]] = {
    "smoke": {
        "fashion, 20 a class": Transfer(data="fashion", image=28, steps=4, batch=16, per_class=20),
        "fashion at 40 px": Transfer(data="fashion", image=40, steps=4, batch=16, per_class=20),
    },
    "small": {
        "CIFAR-100": Transfer(data="cifar100", image=64, steps=300, batch=256),
        "Pets": Transfer(data="pets", image=64, steps=200, batch=256),
    },
    "paper": {
        "ImageNet": Transfer(data="imagenet", recipe="bit_hyperrule"),
        "CIFAR-10": Transfer(data="cifar10", recipe="bit_hyperrule"),
        "CIFAR-100": Transfer(data="cifar100", recipe="bit_hyperrule"),
        "Pets": Transfer(data="pets", recipe="bit_hyperrule"),
        "Flowers": Transfer(data="flowers", recipe="bit_hyperrule"),
    },
}
DIFFERS = {
    "smoke": f"{TOYS}; there is no second data set in the package, so the transfer is to 200 images of the same one, "
    "at two sizes",
    "small": "R50x1 at 64 px on the 100,000 images of Tiny-ImageNet for 6 epochs, two rates for each optimizer, "
    "decoupled weight decay with Adam; transfer to CIFAR-100 and Pets at 64 px",
    "paper": "SGD with BiT's rate and weight decay and the schedule of Table 3; the paper does not state its own",
}


def setup(scale: Scale, datasets: Datasets) -> Setup:
    arms = []
    for optimizer in OPTIMIZERS:
        for rate in RATES[scale][optimizer]:
            settings = _pretraining(scale, datasets, optimizer, rate)
            before = Arm(name=_name(optimizer, rate), settings=settings)
            arms.append(before)
            arms += [
                Arm(name=_name(optimizer, rate, name), settings=transfer(one, datasets), weights_from=before)
                for name, one in SETS[scale].items()
            ]
    return Setup(arms=tuple(arms), seeds=THREE_SEEDS[scale], differs=DIFFERS[scale])


def _pretraining(scale: Scale, datasets: Datasets, optimizer: str, rate: float) -> dict[str, Any]:
    changes: dict[str, Any] = {"lr": rate, "optimizer": SGD} if optimizer == "SGD" else {"lr": rate}
    if scale != "paper":
        return trained(scale, datasets, RESNET, **changes)
    base = {"recipe": "jft_pretrain_7ep", "weights": "none", "model": "R50x1", "data": datasets.find("jft")}
    return {**base, **changes}


def _name(optimizer: str, rate: float, to: str = "") -> str:
    return f"{optimizer}, rate {rate:g}" + f" → {to}" * bool(to)


def judge(evidence: Evidence) -> Sequence[Finding]:
    sets = [*SETS[evidence.scale]]
    adam, sgd = (_best_rate(evidence, optimizer) for optimizer in OPTIMIZERS)
    return [
        greater(
            f"Adam over SGD after transfer, mean of {len(sets)} sets, each at its best rate ({adam:g}, {sgd:g})",
            evidence.per_seed(
                lambda scores: sum(
                    (scores[_name("Adam", adam, to)] - scores[_name("SGD", sgd, to)]) / len(sets) for to in sets
                )
            ),
            paper="+0.54 (89.33, 88.79)",
        ),
        *(
            reported(f"Adam over SGD on {to}", evidence.difference(_name("Adam", adam, to), _name("SGD", sgd, to)))
            for to in sets
        ),
        reported(
            "Adam over SGD in pre-training itself",
            evidence.difference(_name("Adam", adam), _name("SGD", sgd)),
        ),
    ]


def _best_rate(evidence: Evidence, optimizer: str) -> float:
    """Return the rate with the highest mean after transfer; a run that diverged counts as zero."""

    def total(rate: float) -> float:
        return sum(sum(evidence.scores(_name(optimizer, rate, to)).values()) for to in SETS[evidence.scale])

    return max(RATES[evidence.scale][optimizer], key=total)


def draw(evidence: Evidence) -> Figure:
    arms = [
        _name(optimizer, rate, to)
        for to in SETS[evidence.scale]
        for optimizer in OPTIMIZERS
        for rate in RATES[evidence.scale][optimizer]
    ]
    return draw_scores(evidence, "top-1 after transfer, %", arms=arms)


CLAIM = Claim(
    number=5,
    name="adam_or_sgd",
    statement="ResNets transfer better if Adam pre-trained them than if SGD did.",
    source="Table 7, D.1",
    paper="R50x1, mean of five sets: 89.33 with Adam, 88.79 with SGD",
    rule="Adam minus SGD, mean over the sets, above 0",
    setup=setup,
    judge=judge,
    draw=draw,
)
