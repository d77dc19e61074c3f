"""Check that labels are classes: `vitkit fit` refuses what is none and warns, and `vitkit check` says so beforehand."""

import math
from collections.abc import Iterator

import numpy as np

from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.sources.splits import ALL, training_split
from vitkit.text import few

IMBALANCE = 10.0  # images of the most frequent class over those of the rarest, from which there is a warning
MANY = 10  # labels from which a set of labels that hardly repeat cannot be meant as classes


def check_labels(data: Data, name: str, train: Split, *, has_test: bool) -> None:
    """Raise an error where the training images teach no classes, or a classifier of them cannot be scored."""
    if data.task == "segment":
        _check_masks(data, name, train)
        return
    if not data.classes or len(train) == 0:
        raise DataError(
            f"{data.name} has no labels to train on.",
            found=f"{len(data.splits[name]):,} images, {data.kind}",
            **({"note": data.notes} if data.notes else {}),
            try_="class folders or a manifest with labels; vitkit pretrain needs none",
        )
    if data.multilabel:
        return
    counts = train.per_class(len(data.classes))
    present = [data.classes[index] for index in np.flatnonzero(counts)]
    if len(present) < 2:
        raise DataError(
            f"{data.name} has training images of one class only, {present[0]}: there is nothing to tell apart.",
            try_="a folder for each of two classes or more; that folder itself, if they are inside it",
        )
    numbers = _numbers(present)
    images = sum(split.count_labelled() for split in data.splits.values())
    hardly_repeat = images < 2 * len(present)
    if numbers and hardly_repeat and (len(present) >= MANY or _fractions(numbers)):
        raise DataError(
            f"the labels of {data.name} are numbers, {min(numbers):g} to {max(numbers):g}, that hardly repeat: "
            f"{len(present):,} different ones on {images:,} images. vitkit trains classifiers; this is regression.",
            try_="a few ranges as classes, such as under10, 10to20; or --label COLUMN for another column",
        )
    if not has_test and counts.max() == 1 and len(present) >= MANY:
        raise DataError(
            f"each of the {len(train):,} images of {data.name} has a label of its own: none is left for testing.",
            found=few(present),
            try_="two images of a class or more, or a test/ folder; --label COLUMN, if another column has the classes",
        )


def _check_masks(data: Data, name: str, train: Split) -> None:
    """Raise an error where nothing can be learned from masks."""
    if len(train) == 0:
        raise DataError(
            f"{data.name} has no mask for an image to train on.",
            found=f"{len(data.splits[name]):,} images of {name} without masks",
            try_="masks for the images of that split",
        )
    if len(data.classes) < 2:
        raise DataError(
            f"the masks of {data.name} have one class only, {data.classes[0]}: there is nothing to tell apart.",
            try_="masks with two classes or more; the background is a class, too",
        )


def label_warnings(data: Data, *, balance: float = 0.0) -> Iterator[str]:
    """Yield what a classifier of the training images will suffer from, with the setting that helps."""
    if data.task == "segment":
        return
    split = training_split(data)
    counts = data.splits[split].per_class(len(data.classes)) if data.classes else np.zeros(0, np.int64)
    present = {data.classes[index]: int(counts[index]) for index in np.flatnonzero(counts)}
    if not data.multilabel:
        yield from _doubtful_classes(split, present)
    if balance == 0:
        yield from _imbalance(split, present)


def _doubtful_classes(split: str, present: dict[str, int]) -> Iterator[str]:
    """Yield a warning about labels that may be amounts or names of single images; `present` are images of classes."""
    names, images = list(present), sum(present.values())
    numbers = _numbers(names)
    if numbers and len(names) > 2 * MANY and (_fractions(numbers) or images < MANY * len(names)):
        yield (
            f"the labels of {split} are {len(names):,} different numbers, {min(numbers):g} to {max(numbers):g}: they "
            "are learned as names, so that 7 is no nearer to 8 than to 80"
        )
    elif len(names) >= MANY and images < 2 * len(names):
        yield f"most of the {len(names):,} classes of {split} have a single image: are {few(names, 3)} really classes?"


def _imbalance(split: str, present: dict[str, int]) -> Iterator[str]:
    if not present or max(present.values()) < IMBALANCE * min(present.values()):
        return
    largest, rarest = max(present, key=present.__getitem__), min(present, key=present.__getitem__)
    source = "" if split == ALL else f" of {split}"
    yield (
        f"the largest class{source} has {present[largest] / present[rarest]:.0f} times the images of the smallest "
        f"({largest} {present[largest]:,}, {rarest} {present[rarest]:,}): rare classes may never be predicted. "
        "--set balance=0.5 gives them more weight (1: all classes the same), at some cost to frequent ones"
    )


def _numbers(names: list[str]) -> list[float]:
    """Return the names as numbers, or nothing if one of them is no number."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def _fractions(numbers: list[float]) -> bool:
    return any(number != round(number) for number in numbers)
