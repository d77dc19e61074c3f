"""Weights that were trained without class labels, by their name or the file beside them, before they are loaded.

Fine-tuning them wants small rates in the lower layers (layer-wise decay), where weights of a classifier do not need it.
This file does not import torch.
"""

import re
from typing import Any

from vitkit.errors import VitkitError
from vitkit.stored_json import read_json
from vitkit.weights.bundled import local_path

# in the names of repositories, of timm's models and of transformers' model types; the first that is found counts
FAMILIES = {
    "dinov2": "DINOv2",
    "dinov3": "DINOv3",
    "dino": "DINO",
    "mae": "MAE",
    "i?jepa": "I-JEPA",
    "siglip": "SigLIP",
    "(meta)?clip": "CLIP",
    "i(mage)?-?gpt": "iGPT",
}


def label_free_family(weights: str) -> str | None:
    """Return the family of weights that were trained by self-supervision or with captions, None for others.

    A repository of the Hub is judged by its name, a folder by its config.json; a single file does not say.
    """
    path = local_path(weights)
    if path is None:
        return _family_in(weights)
    try:
        settings = read_json(path / "config.json", dict[str, Any])
    except (OSError, VitkitError):  # loading the weights will say what is wrong with it
        return None
    named = (settings.get(key) for key in ("model_type", "architecture"))
    return next((family for name in named if isinstance(name, str) and (family := _family_in(name))), None)


def _family_in(name: str) -> str | None:
    for pattern, family in FAMILIES.items():
        if re.search(rf"(^|[^a-z]){pattern}($|[^a-z])", name.lower()):
            return family
    return None
