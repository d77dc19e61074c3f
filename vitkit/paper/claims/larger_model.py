"""Claim 3: a larger ViT needs more data (Table 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from vitkit.grid.arm import Arm
from vitkit.grid.verdict import Finding, greater, reported
from vitkit.paper.claim import Claim, Scale, Setup
from vitkit.paper.datasets import Datasets
from vitkit.paper.evidence import Evidence
from vitkit.paper.figures import draw_curves
from vitkit.paper.settings import ALL_IMAGES, LARGER, THREE_SEEDS, TITLES, TOYS, VIT, trained

IMAGES: dict[Scale, tuple[int, int]] = {
    "smoke": (200, ALL_IMAGES["smoke"]),
    "small": (10_000, ALL_IMAGES["small"]),
    "paper": (1_281_167, ALL_IMAGES["paper"]),  # ImageNet and JFT-300M
}
NAMES = {**TITLES, "paper": {VIT: "B/16", LARGER: "L/16"}}
RECIPES = {  # at paper scale, by the number of images
    1_281_167: {VIT: "imagenet_pretrain", LARGER: "imagenet_pretrain"},
    ALL_IMAGES["paper"]: {VIT: "jft_pretrain_7ep", LARGER: "jft_pretrain_14ep"},
}
DIFFERS = {
    "smoke": TOYS,
    "small": "Ti/8 and S/8 at 64 px on 10,000 and on 100,000 images of Tiny-ImageNet, from scratch and for the same "
    "number of steps; the paper pre-trains on two data sets and fine-tunes on ImageNet",
    "paper": "as the paper",
}


def setup(scale: Scale, datasets: Datasets) -> Setup:
    arms = tuple(_paper_arms(datasets)) if scale == "paper" else ()
    if scale != "paper":
        arms = tuple(
            Arm(name=_name(model, images), settings=trained(scale, datasets, model, images=images))
            for model in (VIT, LARGER)
            for images in IMAGES[scale]
        )
    return Setup(arms=arms, seeds=THREE_SEEDS[scale], differs=DIFFERS[scale])


def _paper_arms(datasets: Datasets) -> Iterator[Arm]:
    """Yield Table 5's four cells: pre-trained on ImageNet or JFT, fine-tuned on ImageNet at 384 px."""
    for images, source in zip(IMAGES["paper"], ("imagenet", "jft"), strict=True):
        for model in (VIT, LARGER):
            pretraining = {
                "recipe": RECIPES[images][model],
                "weights": "none",
                "model": NAMES["paper"][model],
                "data": datasets.find(source),
            }
            before = Arm(name=f"{_name(model, images)}: pre-training", settings=pretraining)
            settings = {"recipe": "imagenet_transfer_384", "data": datasets.find("imagenet")}
            yield Arm(name=_name(model, images), settings=settings, weights_from=before)


def _name(model: str, images: int) -> str:
    return f"{model}, {images:,} images"


def judge(evidence: Evidence) -> Sequence[Finding]:
    few, many = IMAGES[evidence.scale]
    return [
        greater(
            f"larger minus smaller: with {many:,} images over with {few:,}",
            evidence.per_seed(
                lambda scores: (
                    (scores[_name(LARGER, many)] - scores[_name(VIT, many)])
                    - (scores[_name(LARGER, few)] - scores[_name(VIT, few)])
                )
            ),
            paper="+4.35",
        ),
        reported(
            f"larger minus smaller with {few:,} images",
            evidence.difference(_name(LARGER, few), _name(VIT, few)),
            paper="-1.38 (77.91, 76.53)",
        ),
        reported(
            f"larger minus smaller with {many:,} images",
            evidence.difference(_name(LARGER, many), _name(VIT, many)),
            paper="+2.97 (84.15, 87.12)",
        ),
    ]


def draw(evidence: Evidence) -> Figure:
    """Draw Fig. 3: the score over the number of images."""
    curves = {
        NAMES[evidence.scale][model]: {
            float(images): [*evidence.scores(_name(model, images)).values()] for images in IMAGES[evidence.scale]
        }
        for model in (VIT, LARGER)
    }
    return draw_curves(curves, across="training images", up="top-1, %", logarithmic=True)


CLAIM = Claim(
    number=3,
    name="larger_model",
    statement="A larger ViT needs more data to be better than a smaller one.",
    source="Table 5, Fig. 3",
    paper="B/16 and L/16 on ImageNet: 77.91 and 76.53 pre-trained on ImageNet, 84.15 and 87.12 on JFT-300M",
    rule="larger minus smaller is higher with many images than with few",
    setup=setup,
    judge=judge,
    draw=draw,
)
