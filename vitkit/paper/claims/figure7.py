"""Claim 12: what the model learns about space (Fig. 7): filters, positions, attention distance by depth.

With it the reader's question: the attention weights of every row sum to 1, and yet heads differ in their distance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import vitkit
from vitkit.grid.verdict import Finding, greater, reported
from vitkit.inspect.attention import visit_attention
from vitkit.inspect.distance import attention_distance, patch_distances
from vitkit.inspect.embeddings import position_similarity
from vitkit.model.vit import VisionTransformer
from vitkit.pages.svg import ACCENT, MUTED, canvas
from vitkit.paper.claim import Claim, Measuring, Scale, Setup
from vitkit.paper.datasets import Datasets
from vitkit.paper.evidence import Evidence
from vitkit.paper.images import sample_images

IMAGES = {"smoke": 8, "small": 128, "paper": 128}
SEEDS = {"smoke": (0, 1), "small": (0, 1, 2, 3, 4), "paper": (0, 1, 2, 3, 4)}
UNRELATED, LEARNED = 0.05, -0.5  # correlation of similarity and distance, before and after training
LOCAL, WIDE = 0.25, 0.5  # of the distance of a head that attends to all patches equally
MONOTONE = 0.8


def setup(scale: Scale, datasets: Datasets) -> Setup:
    images = f"{IMAGES[scale]} images a seed"
    source = {"smoke": "of Fashion-MNIST, which the weights never saw", "small": "of Pets", "paper": "of ImageNet"}[
        scale
    ]
    return Setup(
        seeds=SEEDS[scale],
        differs=f"the public Ti/16 (AugReg, ImageNet) in place of L/16 on JFT; {images} {source}",
    )


def measure(measuring: Measuring) -> Mapping[str, Any]:
    model = vitkit.load("ti16").to(measuring.device).eval()
    assert isinstance(model, VisionTransformer)
    images = sample_images(measuring, model, IMAGES[measuring.scale], {"small": "pets", "paper": "imagenet"})
    distance = attention_distance(model, images.split(16))
    torch.manual_seed(measuring.seed)
    fresh = vitkit.create("Ti/16")
    row_sums: list[float] = []
    visit_attention(model, images[:2], lambda layer, weights: row_sums.append(float((weights.sum(-1) - 1).abs().max())))
    return {
        "similarity_trained": _similarity_correlation(model),
        "similarity_fresh": _similarity_correlation(fresh),
        "distance": distance.per_head.astype(float).round(3).tolist(),  # (layers, heads)
        "uniform": round(float(distance.uniform), 3),
        "row_sum_error": max(row_sums),
    }


def _similarity_correlation(model: Any) -> float:
    """Return the correlation, over pairs of patches, of position similarity and distance in the grid."""
    vit: VisionTransformer = model
    count = vit.config.patches
    similarity = np.asarray(position_similarity(vit)).reshape(count, count)
    distances = patch_distances(vit.config.grid, 1).numpy().reshape(count, count)
    off = ~np.eye(count, dtype=bool)
    return float(np.corrcoef(similarity[off], distances[off])[0, 1])


def judge(evidence: Evidence) -> Sequence[Finding]:
    fresh, trained = evidence.measured("similarity_fresh"), evidence.measured("similarity_trained")
    heads = {seed: np.array(rows) for seed, rows in evidence.measured("distance").items()}
    uniform = evidence.measured("uniform")
    return [
        greater(
            f"positions before training are unrelated: {UNRELATED:g} minus the size of the correlation",
            {seed: UNRELATED - abs(value) for seed, value in fresh.items()},
            unit="",
        ),
        greater(
            f"similar positions are near: {LEARNED:g} minus the correlation of similarity and distance",
            {seed: LEARNED - value for seed, value in trained.items()},
            unit="",
        ),
        greater(
            "attention distance grows with depth: Spearman's correlation of layer and distance",
            {seed: _spearman(rows.mean(axis=1)) for seed, rows in heads.items()},
            than=MONOTONE,
            unit="",
        ),
        greater(
            f"a head of the first layer is local: {LOCAL:g} minus its share of uniform",
            {seed: LOCAL - rows[0].min() / uniform[seed] for seed, rows in heads.items()},
            unit="",
        ),
        greater(
            f"another head of the first layer is wide: its share of uniform over {WIDE:g}",
            {seed: rows[0].max() / uniform[seed] - WIDE for seed, rows in heads.items()},
            unit="",
        ),
        reported("largest error of a row's sum, which is always 1", evidence.measured("row_sum_error"), unit=""),
        reported("shortest distance of any head", {seed: float(rows.min()) for seed, rows in heads.items()}, unit="px"),
        reported("longest distance of any head", {seed: float(rows.max()) for seed, rows in heads.items()}, unit="px"),
    ]


def _spearman(values: Sequence[float]) -> float:
    """Return Spearman's correlation of the values with their order."""
    ranks = np.argsort(np.argsort(values)).astype(float)
    return float(np.corrcoef(np.arange(len(ranks)), ranks)[0, 1])


def draw(evidence: Evidence) -> Figure:
    """Draw Fig. 7 right: a dot for each head, layer by layer."""
    heads = np.mean([*evidence.measured("distance").values()], axis=0)
    figure = canvas(640, 300)
    axes = figure.subplots()
    for layer, row in enumerate(heads):
        axes.plot([layer] * len(row), row, "o", color=ACCENT, markersize=6)
    uniform = float(np.mean([*evidence.measured("uniform").values()]))
    axes.axhline(uniform, color=MUTED, linewidth=1)
    axes.text(0, uniform, "attention to all patches alike", color=MUTED, ha="left", va="bottom")
    axes.set_xlabel("layer")
    axes.set_ylabel("mean attention distance, px")
    axes.set_ylim(0, None)
    figure.subplots_adjust(left=0.1, right=0.97, top=0.95, bottom=0.17)
    return figure


CLAIM = Claim(
    number=12,
    name="figure7",
    statement="Positions learn the 2-D grid, and attention reaches further with depth, while some heads of the first "
    "layers are local and others wide.",
    source="Fig. 7",
    paper="drawn, without numbers; D.7",
    rule="similarity and distance of positions: under 0.05 in size before training, under -0.5 after; Spearman(layer, "
    "distance) over 0.8; a head of layer 0 under a quarter of uniform and one over a half",
    setup=setup,
    measure=measure,
    judge=judge,
    draw=draw,
)
