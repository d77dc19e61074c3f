"""Settings of fine-tuning the public Ti/16, which several claims share; equal settings are one run."""

from __future__ import annotations

from typing import Any

from vitkit.config import toml
from vitkit.paper.claim import Scale
from vitkit.paper.datasets import Datasets
from vitkit.paper.settings import SMOKE

# four patches and twelve layers: a step takes a tenth of a second
SMOKE_TRANSFER: dict[str, Any] = {
    "data": "fashion",
    "weights": "ti16",
    "recipe": "pets_transfer",
    "model": "Ti/16",
    "image": [32, 32],
    "augment": {"crop": False},
    "steps": 8,
    **{name: SMOKE[name] for name in ("batch", "save_every", "workers", "duplicates", "schedule")},
}
# docs/pets.md: of Table 4's rates, 0.01 is the best on validation images of Pets at 224 px
SMALL_TRANSFER: dict[str, Any] = {
    "weights": "ti16",
    "recipe": "pets_transfer",
    "model": "Ti/16",
    "image": [224, 224],
    "lr": 0.01,
    "save_every": 1_000_000,
    "duplicates": "ignore",
}


def from_ti16(scale: Scale, datasets: Datasets, **changes: Any) -> dict[str, Any]:
    """Return the settings of fine-tuning Ti/16 at smoke or small scale, on Pets unless changes name other data."""
    if scale == "smoke":
        return toml.merge(SMOKE_TRANSFER, changes)
    data = {} if "data" in changes else {"data": datasets.find("pets")}
    return toml.merge({**SMALL_TRANSFER, **data}, changes)
