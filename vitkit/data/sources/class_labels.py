"""Class names → label indices: one sorted list of classes over all splits, whatever the source."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitkit.data.sources.dataset import AllRows, Data, DataError, ImageStore, PackedStrings, Split, nfc
from vitkit.data.sources.splits import SPLITS, TRAINING_SPLITS
from vitkit.data.sparse_labels import LabelRows, SparseLabels, SplitLabels
from vitkit.text import counted, few, valid_utf8


@dataclass(frozen=True)
class NamedLabels:
    """Multi-label labels as a source spells them: class k of `labels` is names[k]."""

    names: Sequence[str]
    labels: SparseLabels


class NamedLabelRows:
    """The labels of images, collected one image after another; a class name is kept once, however many have it."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.rows = LabelRows()

    def add(self, names: Iterable[str]) -> None:
        """Add the class names of the next image."""
        self.rows.add(self.index.setdefault(name, len(self.index)) for name in names)

    def build(self) -> NamedLabels:
        return NamedLabels(list(self.index), self.rows.build(len(self.index)))


@dataclass(frozen=True)
class RawSplit:
    """One split as a source has it: row i of `store` is the image keys[i] of the class labels[i]."""

    keys: Sequence[str]
    store: ImageStore
    labels: Sequence[str | None] | NamedLabels  # one class each, None where unlabelled; or any number of them
    groups: Sequence[str | None] | None = None  # the group of each image, None for an image alone


def build_data(name: str, kind: str, raw_splits: Mapping[str, RawSplit], *, notes: Iterable[str] = ()) -> Data:
    """Build the data from the splits of a source; they are multi-label if the labels of any split are."""
    empty = [split for split, raw in raw_splits.items() if not len(raw.keys)]
    if len(empty) == len(raw_splits):
        raise DataError(f"{name} holds no images: {kind}, all empty.")
    raw_splits = {split: raw for split, raw in raw_splits.items() if split not in empty}
    multilabel = any(isinstance(raw.labels, NamedLabels) for raw in raw_splits.values())
    names = {label: nfc(label) for label in set[str]().union(*(_used(raw.labels) for raw in raw_splits.values()))}
    classes = sort_classes(names.values())
    class_index = {name: index for index, name in enumerate(classes)}
    label_index = {label: class_index[name] for label, name in names.items()}
    splits = {}
    for split in sorted(raw_splits, key=SPLITS.index):
        raw = raw_splits[split]
        labels = _numbers(raw.labels, label_index)
        splits[split] = Split(_valid_keys(raw.keys), labels, raw.store, AllRows(len(raw.keys)))
    if any(raw.groups is not None for raw in raw_splits.values()):
        groups = {split: raw_splits[split].groups or [None] * len(splits[split]) for split in splits}
        splits = with_groups(splits, groups)
    shown = tuple(map(valid_utf8, classes))
    skipped = (f"{split} is empty, skipped" for split in empty)
    return Data(name, kind, shown, splits, (*notes, *skipped, *label_notes(shown, splits)), multilabel)


def with_groups(splits: Mapping[str, Split], names: Mapping[str, Sequence[str | None]]) -> dict[str, Split]:
    """Return the splits with the named groups, which may reach over several splits; None is an image alone.

    The number of a group is that of its first image, counted over all splits.
    """
    first_image: dict[str, int] = {}
    grouped, start = {}, 0
    for split in splits:
        numbers = np.fromiter(
            (
                row if name is None else first_image.setdefault(name, row)
                for row, name in enumerate(names[split], start)
            ),
            np.int64,
            len(splits[split]),
        )
        grouped[split] = replace(splits[split], groups=numbers)
        start += len(numbers)
    return grouped


def _valid_keys(keys: Sequence[str]) -> PackedStrings:
    """Return the keys for messages; paths that are text are shared, not copied."""
    return keys if isinstance(keys, PackedStrings) and keys.are_text else PackedStrings(map(valid_utf8, keys))


def _used(labels: Sequence[str | None] | NamedLabels) -> set[str]:
    if isinstance(labels, NamedLabels):
        return {labels.names[number] for number in np.flatnonzero(labels.labels.counts()).tolist()}
    return {label for label in set(labels) if label is not None}


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Sort class names; by value where all are integers, so that class 10 does not come before class 2."""
    unique = set(names)
    if all(name.isascii() and name.isdecimal() for name in unique):
        return tuple(sorted(unique, key=lambda name: (int(name), name)))
    return tuple(sorted(unique))


def _numbers(labels: Sequence[str | None] | NamedLabels, index: Mapping[str, int]) -> SplitLabels:
    if isinstance(labels, NamedLabels):
        target = np.array([index.get(name, -1) for name in labels.names], dtype=np.int64)
        return labels.labels.renumber(target, max(index.values(), default=-1) + 1)
    return np.fromiter((-1 if label is None else index[label] for label in labels), np.int64, len(labels))


def label_notes(classes: tuple[str, ...], splits: Mapping[str, Split]) -> Iterable[str]:
    """Yield notes about unusual classes and labels."""
    if len(classes) == 1:
        yield f"one class only: {classes[0]}"
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(unicodedata.normalize("NFKC", name).casefold().strip(), []).append(name)
    for names in alike.values():
        if len(names) > 1:
            spellings = ", ".join(map(_spelled, names))
            yield f"classes that look alike but are spelled differently stay separate: {spellings}"
    if not classes:
        return
    training = next((split for split in TRAINING_SPLITS if split in splits), None)
    for name, split in splits.items():
        if not split.labelled:
            continue
        present = split.per_class(len(classes)) > 0
        if not present.all():
            missing = [classes[index] for index in np.flatnonzero(~present)]
            yield (
                missing_class_note(name, missing)
                if name == training
                else f"{name} has no image of {counted(len(missing), 'class')}: {few(missing)}"
            )
        if count := len(split) - split.count_labelled():
            yield f"{name} has {counted(count, 'image')} without a label"


def missing_class_note(training: str, classes: Sequence[str]) -> str:
    return f"{training} has no image of {few(classes)}, which cannot be learned"


def _spelled(name: str) -> str:
    """Quote the name, so that spaces show, and add the code points of characters with a look-alike: 'µm' (U+00B5)."""
    code_points = [
        f"U+{ord(character):04X}"
        for character in dict.fromkeys(name)
        if character.isprintable() and unicodedata.normalize("NFKC", character) != character
    ]
    return repr(name) + (f" ({few(code_points, 3)})" if code_points else "")
