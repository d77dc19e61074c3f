"""Partition the images into training, validation and test; missing splits are held out, stratified and seeded."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitkit.data.label_check import check_labels
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.sources.splits import scoring_split, training_split, validation_split
from vitkit.data.stateless_rng import generator
from vitkit.errors import ConfigError

SPLITTING = 0x5711  # sets these draws apart from the orders of epochs, which have the same seed


@dataclass(frozen=True)
class Partition:
    """The images of a run by purpose."""

    train: Split
    validation: Split | None  # for choosing: learning rates, early stopping
    test: Split | None  # for the final score
    test_name: str  # test, val, or held-out where it was cut from another split
    description: tuple[str, ...]  # "3,680 trainval", …
    held_out: dict[str, Any] | None  # how `test` was cut from a split, so that an evaluation can repeat it

    @property
    def to_choose_by(self) -> Split | None:
        """Return the validation images, unless the test images are the same: what is chosen by them is not scored."""
        one, other = self.validation, self.test
        if one is not None and other is not None and one.store is other.store and np.isin(one.rows, other.rows).any():
            return None
        return one


def partition(
    data: Data,
    *,
    objective: str = "labels",
    test: float = 0.2,
    dev: float = 0.0,
    split_seed: int = 0,
    patience: int = 0,
) -> Partition:
    """Assign the splits of the data to training, validation and test, and hold out what they lack.

    The options are the settings of a run by the same names: shares to hold out, the seed, and whether the run stops
    early by validation.
    """
    name = training_split(data)
    train = data.splits[name]
    if objective == "masked-patch":  # labels are not read, and nothing is held out
        return Partition(train, None, None, "", (f"{len(train):,} images of {name}",), None)
    train, record = _labelled(train), None
    test_name = _test_name(data, name)
    check_labels(data, name, train, has_test=test_name is not None)
    if test_name is None:
        record = {"source": name, "share": test, "seed": split_seed, "fingerprint": fingerprint(data, name)}
        train, tested = _hold_out(train, test, split_seed, "testing", "more images, or a test/ folder")
        description = [
            f"{len(train):,} train",
            f"{len(tested):,} test, held out from {name} ({test:.0%} of each class)",
        ]
    else:
        tested = _labelled(data.splits[test_name])
        description = [f"{len(train):,} {name}", f"{len(tested):,} {test_name}"]
    validation_name = _validation_name(data, test_name, tunes=bool(dev or patience))
    validation = _labelled(data.splits[validation_name]) if validation_name else None
    if validation is not None and validation_name != test_name:
        description.insert(1, f"{len(validation):,} {validation_name}")
    if validation is None and dev:
        train, validation = _hold_out(train, dev, split_seed + 1, "validation", "more images, or a val/ folder")
        description.insert(1, f"{len(validation):,} of them held out for validation")
    return Partition(train, validation, tested, test_name or "held-out", tuple(description), record)


def fingerprint(data: Data, split: str) -> str:
    """Return a hash of a split's names, classes and labels: enough to recognise it without reading an image."""
    chosen = data.splits[split]
    digest = hashlib.sha256()
    for text in (*data.classes, "\0", *chosen.keys):
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    digest.update(np.ascontiguousarray(chosen.labels).tobytes())
    return digest.hexdigest()


def held_out_test(data: Data, record: Mapping[str, Any]) -> Data | None:
    """Return the data with the images that a run held out as their only split, `test`; None for other data."""
    source = record["source"]
    if source not in data.splits or fingerprint(data, source) != record["fingerprint"]:
        return None
    labelled = _labelled(data.splits[source])
    _, chosen = stratified(labelled.labels, record["share"], record["seed"])
    return replace(data, splits={"test": labelled.select(chosen)})


def stratified(labels: np.ndarray, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted indices of (the rest, the share held out), each class in proportion.

    labels are (n,) class indices, -1 for unlabelled, or (n, K) of 0 and 1; there, an image counts for the rarest label
    it has. A class of two or more images is on both sides; one of a single image stays in the rest.
    """
    if not 0 < share < 1:
        raise ConfigError(f"a share of {share} cannot be held out", expected="above 0, under 1")
    strata = _rarest(labels) if labels.ndim == 2 else labels
    chosen: list[np.ndarray] = []
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        # a generator for each class: the size of another class does not change which images are chosen here
        chosen.append(generator(seed, SPLITTING, int(stratum) + 1).permutation(members)[:count])
    held_out = np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)
    rest = np.setdiff1d(np.arange(len(labels)), held_out, assume_unique=True)
    return rest, held_out


def _rarest(labels: np.ndarray) -> np.ndarray:
    """Return (n,) for (n, K): the label of each image that the fewest images have, -1 without any."""
    counts = labels.sum(axis=0)
    by_rarity = np.where(labels.astype(bool), counts, np.iinfo(np.int64).max)
    return np.where(labels.any(axis=1), by_rarity.argmin(axis=1), -1)


def _test_name(data: Data, fitted: str) -> str | None:
    """Return the split to score, unless training uses its images."""
    try:
        name = scoring_split(data)
    except DataError:
        return None
    return None if name == fitted else name


def _validation_name(data: Data, test_name: str | None, *, tunes: bool) -> str | None:
    """Return the validation split. One that is scored as well may be watched; tuning on it would inflate the score."""
    name = validation_split(data)
    if name is None or not data.splits[name].labelled or (name == test_name and tunes):
        return None
    return name


def _hold_out(split: Split, share: float, seed: int, purpose: str, advice: str) -> tuple[Split, Split]:
    kept, chosen = stratified(split.labels, share, seed)
    if len(chosen) == 0 or len(kept) == 0:
        raise DataError(
            f"{len(split)} images, no two of a class, are too few to hold some out for {purpose}.", try_=advice
        )
    return split.select(kept), split.select(chosen)


def _labelled(split: Split) -> Split:
    return split if split.labels.ndim == 2 or (split.labels >= 0).all() else split.select(split.labels >= 0)
