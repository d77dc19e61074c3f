"""Claim 13: attention falls on the object (Fig. 6): rollout mass inside trimaps over their share of the area.

Rollout counts the residual connections as half of each layer (Abnar and Zuidema, 2020); beside it stands the literal
text of D.8, without them. Objects are mostly in the centre of a photo, so two numbers say how much of the effect is
that: the mean of all maps in place of each image's own, and a model with random weights.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

import vitkit
from vitkit.data.decode import decode
from vitkit.data.sources.open import open_data
from vitkit.data.transforms import EvalTransform
from vitkit.grid.verdict import Finding, greater, reported
from vitkit.inspect.rollout import rollout
from vitkit.model.vit import VisionTransformer
from vitkit.pages.svg import ACCENT, MUTED, canvas
from vitkit.paper.claim import Claim, Measuring, Scale, Setup
from vitkit.paper.datasets import Datasets
from vitkit.paper.evidence import Evidence
from vitkit.paper.trimaps import (
    BACKGROUND,
    BORDER,
    OBJECT,
    Maps,
    OutlinedImage,
    outlined_pets,
    patch_shares,
    read_trimap,
    shares_inside,
)

IMAGES: dict[Scale, int] = {"smoke": 8, "small": 100, "paper": 100}  # for each seed
SEEDS = {"smoke": (0, 1), "small": (0, 1, 2, 3, 4), "paper": (0, 1, 2, 3, 4)}
SHOWN, SHOWN_SIDE = 4, 112  # images in the figure, and their side in pixels
GARMENT, EMPTY = 48, 8  # grey levels of Fashion-MNIST: from here on garment, up to here background
# what is measured → the name of its shares in the log
KINDS = {"rollout": "mass", "literal": "mass_literal", "mean": "mass_of_mean", "random": "mass_random"}


def setup(scale: Scale, datasets: Datasets) -> Setup:
    differs = f"the public Ti/16 (AugReg, ImageNet) in place of L/16 on JFT; {IMAGES[scale]} images a seed "
    if scale == "smoke":
        differs += (
            f"of Fashion-MNIST, whose trimaps are synthetic: object where the image is {GARMENT} or brighter, "
            f"background up to {EMPTY}, border between"
        )
    else:
        datasets.find("pets", as_published=True)
        differs += "of Pets, other ones for each seed; border pixels are left out"
    return Setup(seeds=SEEDS[scale], differs=differs)


def measure(measuring: Measuring) -> Mapping[str, Any]:
    model = vitkit.load("ti16").to(measuring.device).eval()
    assert isinstance(model, VisionTransformer)
    torch.manual_seed(measuring.seed)
    random = vitkit.create("Ti/16").to(measuring.device).eval()
    count = IMAGES[measuring.scale]
    start = measuring.seed * count  # seeds share no image
    chosen = _garments(count, start) if measuring.scale == "smoke" else outlined_pets(measuring.datasets, count, start)
    transform = EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing)
    resized = [transform.resize_only(decode(one.image)) for one in chosen]
    images = torch.stack([transform.normalise(one) for one in resized]).to(measuring.device)
    sides = [
        patch_shares(read_trimap(one.trimap), model.config.image, model.config.grid, transform.preprocessing)
        for one in chosen
    ]
    inside, outside = (np.stack(side) for side in zip(*sides, strict=True))
    maps = {
        "rollout": rollout(model, images),
        "literal": rollout(model, images, identity=False),
        "random": rollout(random, images),
    }
    maps["mean"] = np.broadcast_to(maps["rollout"].mean(axis=0), maps["rollout"].shape)
    numbers: dict[str, Any] = {"area": _rounded(shares_inside(maps["rollout"], inside, outside)[1])}
    for kind, name in KINDS.items():
        numbers[name] = _rounded(shares_inside(maps[kind], inside, outside)[0])
    numbers["examples"] = [
        {
            "name": chosen[index].name,
            "image": _as_jpeg(resized[index].byte().permute(1, 2, 0).cpu().numpy()),
            "map": _relative(maps["rollout"][index]),
            "object": inside[index].round(2).tolist(),
        }
        for index in range(min(SHOWN, len(chosen)) if measuring.seed == SEEDS[measuring.scale][0] else 0)
    ]
    return numbers


def _garments(count: int, start: int) -> list[OutlinedImage]:
    """Return images of Fashion-MNIST with a trimap by their brightness: the background of a garment is black."""
    split = open_data("fashion").splits["test"]
    found = []
    for index in range(start, start + count):
        grey = decode(split.read(index), channels=1)[..., 0]
        trimap = np.full(grey.shape, BORDER, np.uint8)
        trimap[grey >= GARMENT], trimap[grey <= EMPTY] = OBJECT, BACKGROUND
        found.append(OutlinedImage(name=f"fashion {index}", image=split.read(index), trimap=trimap))
    return found


def _rounded(values: NDArray[np.float64]) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 4) for value in values]


def _relative(shares: NDArray[np.float32]) -> list[list[float]]:
    """Return a map with its largest value at 1, which is how Fig. 6 shows it."""
    return [[round(float(value), 3) for value in row] for row in shares / max(float(shares.max()), 1e-12)]


def _as_jpeg(pixels: NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).resize((SHOWN_SIDE, SHOWN_SIDE)).save(file, "JPEG", quality=80)
    return base64.b64encode(file.getvalue()).decode()


def judge(evidence: Evidence) -> Sequence[Finding]:
    ratios = {kind: _ratios(evidence, name) for kind, name in KINDS.items()}
    above = {seed: _share_above(*_paired(evidence, KINDS["rollout"], seed)) for seed in _measured_seeds(evidence)}
    beyond = {seed: ratios["rollout"][seed] - ratios["mean"][seed] for seed in ratios["rollout"]}
    return [
        greater(
            "rollout mass on the object over its share of the area", ratios["rollout"], than=1.0, unit="", paper="drawn"
        ),
        reported("the same without residual connections, the literal D.8", ratios["literal"], unit=""),
        reported("the same with the mean of all maps, which knows the place alone", ratios["mean"], unit=""),
        reported("each image's own map beyond the mean of all maps", beyond, unit=""),
        reported("the same with random weights", ratios["random"], unit=""),
        reported("images with more mass on the object than area", above, unit="%"),
    ]


def _measured_seeds(evidence: Evidence) -> list[int]:
    return [*evidence.measured("area")]


def _paired(evidence: Evidence, name: str, seed: int) -> tuple[Maps, Maps]:
    """Return mass and area of the images that show both object and background."""
    pairs = zip(evidence.measured(name)[seed], evidence.measured("area")[seed], strict=True)
    kept = np.array([pair for pair in pairs if None not in pair and 0 < pair[1] < 1]).reshape(-1, 2)
    return kept[:, 0], kept[:, 1]


def _ratios(evidence: Evidence, name: str) -> dict[int, float]:
    """Return mean mass over mean area for each seed: a mean of ratios would follow the smallest objects."""
    found = {}
    for seed in _measured_seeds(evidence):
        mass, area = _paired(evidence, name, seed)
        if len(area):
            found[seed] = float(mass.mean() / area.mean())
    return found


def _share_above(mass: Maps, area: Maps) -> float:
    return 100 * float((mass > area).mean()) if len(area) else float("nan")


def draw(evidence: Evidence) -> Figure:
    """Draw Fig. 6, input and attention side by side, and the mass of every image against its area."""
    examples = [one for seed in _measured_seeds(evidence)[:1] for one in evidence.measured("examples")[seed]]
    figure = canvas(640, 520)
    grid = figure.add_gridspec(3, max(len(examples), 1), height_ratios=(1, 1, 1.9), hspace=0.12, wspace=0.06)
    for column, example in enumerate(examples):
        image = np.asarray(Image.open(io.BytesIO(base64.b64decode(example["image"]))))
        shown = _enlarged(np.array(example["map"]), image.shape[:2])
        for row, pixels in enumerate((image, (image * shown[..., None]).astype(np.uint8))):
            axes = figure.add_subplot(grid[row, column])
            axes.imshow(pixels, interpolation="nearest")
            if row and np.ptp(example["object"]) > 0.5:
                _outline(axes, np.array(example["object"]), image.shape)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
            if not column:
                axes.set_ylabel("attention" if row else "input")
    axes = figure.add_subplot(grid[2, :])
    for seed in _measured_seeds(evidence):
        mass, area = _paired(evidence, KINDS["rollout"], seed)
        axes.plot(100 * area, 100 * mass, "o", color=ACCENT, markersize=4, alpha=0.6)
    axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1)
    axes.set_xlabel("object's share of the area, %")
    axes.set_ylabel("rollout mass on it, %")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    figure.subplots_adjust(left=0.09, right=0.98, top=0.98, bottom=0.1)
    return figure


def _outline(axes: Axes, inside: NDArray[np.float64], size: tuple[int, ...]) -> None:
    """Draw the object's outline through the centres of patches."""
    down, across = (
        (np.arange(count) + 0.5) * side / count - 0.5 for count, side in zip(inside.shape, size[:2], strict=True)
    )
    axes.contour(across, down, inside, levels=[0.5], colors=ACCENT, linewidths=1)


def _enlarged(shares: NDArray[np.float64], size: tuple[int, ...]) -> NDArray[np.float64]:
    """Return a map of patches at the size of the image, bilinear, between 0 and 1."""
    tensor = torch.from_numpy(shares)[None, None].float()
    large = torch.nn.functional.interpolate(tensor, size=(size[0], size[1]), mode="bilinear", align_corners=False)
    return large[0, 0].clamp(0, 1).double().numpy()


CLAIM = Claim(
    number=13,
    name="rollout",
    statement="Attention falls on the object that the image shows.",
    source="Fig. 6, D.8",
    paper="drawn: the model attends to image regions that are semantically relevant for classification",
    rule="the share of rollout mass inside the trimaps, over their share of the area, is above 1",
    setup=setup,
    measure=measure,
    judge=judge,
    draw=draw,
)
