"""The seven augmentation settings of AugReg, "How to train your ViT?" (Steiner et al. 2021), as big_vision has them.

All of them also crop as Inception did, and flip. That is left to transforms.Fast, which has the picture at full size.
"""

from __future__ import annotations

from vitkit.data.augment import Augment
from vitkit.errors import ConfigError, did_you_mean

AUGREG = {
    "none": Augment(),
    "light1": Augment(randaugment=(2, 0)),  # magnitude 0 is not nothing: see randaugment.py
    "light2": Augment(randaugment=(2, 10), mixup=0.2),
    "medium1": Augment(randaugment=(2, 15), mixup=0.2),
    "medium2": Augment(randaugment=(2, 15), mixup=0.5),
    "strong1": Augment(randaugment=(2, 20), mixup=0.5),
    "strong2": Augment(randaugment=(2, 20), mixup=0.8),
}


def preset(name: str) -> Augment:
    if name not in AUGREG:
        raise ConfigError(
            f"there is no augmentation called {name!r}{did_you_mean(name, AUGREG)}", choose_from=", ".join(AUGREG)
        )
    return AUGREG[name]
