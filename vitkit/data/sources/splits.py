"""Split names and their spellings, and which split is for training, validation and scoring."""

import re
from collections.abc import Iterable

from vitkit.data.sources.dataset import Data, DataError

SPLITS = ("train", "trainval", "val", "test", "all")
ALL = "all"  # the only split of a source without splits
TRAINING_SPLITS = ("train", "trainval", ALL)  # the first that exists

_SPELLINGS = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"} | {
    name: name for name in ("train", "trainval", "val", "test")
}


def canonical_split(name: str) -> str | None:
    """Return "train" for "Training"; None for a name that is not a split's."""
    return _SPELLINGS.get(name.lower())


def split_in_file_name(name: str) -> str | None:
    """Return "train" for "imagenet-train-0001"; None where no word, or more than one, names a split."""
    splits = {split for word in re.split(r"[^A-Za-z]+", name) if (split := canonical_split(word))}
    return splits.pop() if len(splits) == 1 else None


def check_split_spellings(source: str, names: Iterable[str]) -> None:
    """Refuse two spellings of one split, such as val/ and dev/: merging them, or using one, would be a guess."""
    by_split: dict[str, list[str]] = {}
    for name in sorted(names):
        by_split.setdefault(canonical_split(name) or name, []).append(name)
    for split, spelled in by_split.items():
        if len(spelled) > 1:
            raise DataError(
                f"{source} has more than one split that could be {split}: {', '.join(spelled)}.",
                try_="rename or remove all but one",
            )


def training_split(data: Data) -> str:
    for name in TRAINING_SPLITS:
        if name in data.splits:
            return name
    raise _missing_split(data, "to train on", "train, trainval, or no splits at all")


def validation_split(data: Data) -> str | None:
    """Return val, unless training uses trainval, which includes it."""
    return "val" if "val" in data.splits and training_split(data) != "trainval" else None


def scoring_split(data: Data) -> str:
    """Return test, else val, else everything; a split without labels cannot be scored.

    Where training uses trainval, which includes val, val does not count.
    """
    trained_on_val = "trainval" in data.splits and "train" not in data.splits
    for name in ("test", "val", ALL):
        if name in data.splits and data.splits[name].labelled and not (name == "val" and trained_on_val):
            return name
    raise _missing_split(data, "to score on", "test or val with labels, or no splits at all")


def _missing_split(data: Data, purpose: str, expected: str) -> DataError:
    splits = [
        f"{name}: {len(split):,} images{'' if split.labelled else ', unlabelled'}"
        for name, split in data.splits.items()
    ]
    return DataError(f"{data.name} has no split {purpose}.", expected=expected, found=splits)
