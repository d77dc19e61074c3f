"""A part of the pictures set aside, each class in proportion: seeded, and the same for the same data."""

from __future__ import annotations

import numpy as np

from vitkit.data.order import generator
from vitkit.errors import ConfigError

SPLITTING = 0x5711  # sets these draws apart from the orders of epochs, which have the same seed


def stratified(labels: np.ndarray, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Indices of (the rest, the part set aside), sorted.

    labels are (n,) class indices, -1 for unlabelled, or (n, K) of 0 and 1; there, a picture counts for the rarest label
    it has. A class of two or more pictures is on both sides; one of a single picture stays in the rest.
    """
    if not 0 < share < 1:
        raise ConfigError(f"a share of {share} cannot be set aside", expected="above 0, under 1")
    strata = _rarest(labels) if labels.ndim == 2 else labels
    aside: list[np.ndarray] = []
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        # a generator of its own for each class: another class's size does not change who is chosen here
        aside.append(generator(seed, SPLITTING, int(stratum) + 1).permutation(members)[:count])
    part = np.sort(np.concatenate(aside)) if aside else np.empty(0, np.int64)
    rest = np.setdiff1d(np.arange(len(labels)), part, assume_unique=True)
    return rest, part


def _rarest(labels: np.ndarray) -> np.ndarray:
    """(n, K) → (n,): each picture's label that the fewest others share, -1 without any."""
    counts = labels.sum(axis=0)
    by_rarity = np.where(labels.astype(bool), counts, np.iinfo(np.int64).max)
    return np.where(labels.any(axis=1), by_rarity.argmin(axis=1), -1)
