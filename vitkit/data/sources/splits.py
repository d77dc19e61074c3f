"""The usual names of splits, and which of them a verb uses: fitting train, choosing val, scoring test."""

from __future__ import annotations

import re
from collections.abc import Iterable

from vitkit.data.sources.base import Data, DataError

SPLITS = ("train", "trainval", "val", "test", "all")
WHOLE = "all"  # the one split of a source that has none
FITTED = ("train", "trainval", WHOLE)  # the first of them that there is

_SPELLINGS = {
    "train": "train",
    "training": "train",
    "trainval": "trainval",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def canonical(name: str) -> str | None:
    """ "Training" → "train"; None for a name that is no split's."""
    return _SPELLINGS.get(name.lower())


def split_within(name: str) -> str | None:
    """ "imagenet-train-0001" → "train"; None where no part, or more than one, names a split."""
    found = {split for part in re.split(r"[^A-Za-z]+", name) if (split := canonical(part))}
    return found.pop() if len(found) == 1 else None


def refuse_two_spellings(source: str, names: Iterable[str]) -> None:
    """`val/` beside `dev/`: merging them, or taking one, would be a guess."""
    by_split: dict[str, list[str]] = {}
    for name in sorted(names):
        by_split.setdefault(canonical(name) or name, []).append(name)
    for split, spelled in by_split.items():
        if len(spelled) > 1:
            raise DataError(
                f"{source} has more than one split that could be {split}: {', '.join(spelled)}.",
                try_="rename or remove all but one",
            )


def fitting_split(data: Data) -> str:
    for name in FITTED:
        if name in data.splits:
            return name
    raise _lacking(data, "to fit on", "train, trainval, or no splits at all")


def choosing_split(data: Data) -> str | None:
    """val, unless fitting uses trainval, which holds it."""
    return "val" if "val" in data.splits and fitting_split(data) != "trainval" else None


def scoring_split(data: Data) -> str:
    """test, else val, else everything; a split without labels (a competition's test set) cannot score.

    Where fitting uses trainval, which holds val, val is no test of what was fitted.
    """
    fitted = "trainval" in data.splits and "train" not in data.splits
    for name in ("test", "val", WHOLE):
        if name in data.splits and data.splits[name].labelled and not (name == "val" and fitted):
            return name
    raise _lacking(data, "to score on", "test or val with labels, or no splits at all")


def _lacking(data: Data, purpose: str, looked_for: str) -> DataError:
    found = [
        f"{name}: {len(split):,} pictures{'' if split.labelled else ', unlabelled'}"
        for name, split in data.splits.items()
    ]
    return DataError(f"{data.name} has no split {purpose}.", looked_for=looked_for, found=found)
