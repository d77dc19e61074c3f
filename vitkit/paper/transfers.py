"""Fine-tuning in claims: the settings of a run that starts from the model of another arm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitkit.data.sources import fashion
from vitkit.paper.datasets import Datasets


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The data set and the length of a fine-tuning; without a length, as the recipe says.

    data        the name of a data set, or that of the one inside the package
    per_class   training images of each class; None: all
    """

    data: str
    recipe: str = "medium_transfer"
    image: int | None = None
    steps: int | None = None
    batch: int | None = None
    per_class: int | None = None


def transfer(one: Transfer, datasets: Datasets) -> dict[str, Any]:
    """Return the settings of a transfer; model and options come with the weights."""
    inside = one.data == fashion.NAME
    lengths = {"steps": one.steps, "batch": one.batch, "subset_per_class": one.per_class}
    return {
        "recipe": one.recipe,
        "data": one.data if inside else datasets.find(one.data),
        **({"duplicates": "ignore", "save_every": 1_000_000} if one.steps else {}),  # seconds, or the paper's own
        **({"image": [one.image, one.image]} if one.image else {}),
        **{name: value for name, value in lengths.items() if value is not None},
        **({"workers": 0} if inside else {}),
    }
