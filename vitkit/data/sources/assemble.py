"""Names → classes, frozen once over all splits: labels are indices into one sorted list, wherever they came from."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.sources.base import Data, DataError, Names, Pictures, Split, composed
from vitkit.data.sources.splits import FITTED, SPLITS
from vitkit.text import counted, few, printable


@dataclass(frozen=True)
class Part:
    """One split as a source found it: row i of `pictures` is keys[i] and shows labels[i]."""

    keys: Sequence[str]
    pictures: Pictures
    labels: Sequence[str | None] | Sequence[Sequence[str]]  # one class, None where unlabelled; or any number of them


def assemble(
    name: str, kind: str, parts: Mapping[str, Part], *, notes: Iterable[str] = (), multilabel: bool = False
) -> Data:
    empty = [split for split, part in parts.items() if not len(part.keys)]
    if len(empty) == len(parts):
        raise DataError(f"{name} holds no pictures: {kind}, all empty.")
    parts = {split: part for split, part in parts.items() if split not in empty}
    names = {label: composed(label) for label in _used(parts, multilabel)}
    classes = in_order(names.values())
    number = {name: index for index, name in enumerate(classes)}
    place = {label: number[name] for label, name in names.items()}
    splits = {}
    for split in sorted(parts, key=SPLITS.index):
        part = parts[split]
        labels = _table(part.labels, place) if multilabel else _indices(part.labels, place)
        splits[split] = Split(_shown(part.keys), labels, part.pictures, np.arange(len(part.keys)))
    shown = tuple(map(printable, classes))
    left_out = (f"{split} is empty, left out" for split in empty)
    return Data(name, kind, shown, splits, (*notes, *left_out, *oddities(shown, splits, multilabel)), multilabel)


def _shown(keys: Sequence[str]) -> Names:
    """Paths are their own keys, held once, unless they cannot be printed."""
    return keys if isinstance(keys, Names) and keys.are_text else Names(map(printable, keys))


def _used(parts: Mapping[str, Part], multilabel: bool) -> set[str]:
    given: Iterable[Any] = chain.from_iterable(part.labels for part in parts.values())
    return set(chain.from_iterable(given)) if multilabel else set(given) - {None}


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted; by value where all are whole numbers, so that class 10 does not stand before class 2."""
    unique = set(names)
    if all(name.isascii() and name.isdecimal() for name in unique):
        return tuple(sorted(unique, key=lambda name: (int(name), name)))
    return tuple(sorted(unique))


def _indices(labels: Sequence[Any], place: Mapping[str, int]) -> NDArray[np.int64]:
    return np.fromiter((-1 if label is None else place[label] for label in labels), np.int64, len(labels))


def _table(labels: Sequence[Any], place: Mapping[str, int]) -> NDArray[np.bool_]:
    table = np.zeros((len(labels), len(place)), dtype=bool)
    for row, found in enumerate(labels):
        table[row, [place[label] for label in found]] = True
    return table


def oddities(classes: tuple[str, ...], splits: Mapping[str, Split], multilabel: bool) -> Iterable[str]:
    if len(classes) == 1:
        yield f"one class only: {classes[0]}"
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(unicodedata.normalize("NFKC", name).casefold().strip(), []).append(name)
    for names in alike.values():
        if len(names) > 1:
            yield f"classes that look alike but are spelled differently, kept apart: {', '.join(map(_spelled, names))}"
    if not classes:
        return
    fitted = next((split for split in FITTED if split in splits), None)
    for split, pictures in splits.items():
        if not pictures.labelled:
            continue
        seen = pictures.labels.any(axis=0) if multilabel else np.isin(np.arange(len(classes)), pictures.labels)
        if not seen.all():
            missing = [classes[index] for index in np.flatnonzero(~seen)]
            yield (
                unlearnable(split, missing)
                if split == fitted
                else f"{split} has no picture of {counted(len(missing), 'class')}: {few(missing)}"
            )
        if not multilabel and (count := int((pictures.labels < 0).sum())):
            yield f"{split} has {counted(count, 'picture')} without a label"


def unlearnable(fitted: str, classes: Sequence[str]) -> str:
    return f"{fitted} has no picture of {few(classes)}, which cannot be learned"


def _spelled(name: str) -> str:
    """Quoted, so that spaces at the ends and what has no shape are seen; signs that may look like plain ones are told
    by their numbers: 'µm' (U+00B5).
    """
    doubles = [
        f"U+{ord(sign):04X}"
        for sign in dict.fromkeys(name)
        if sign.isprintable() and unicodedata.normalize("NFKC", sign) != sign
    ]
    return repr(name) + (f" ({few(doubles, 3)})" if doubles else "")
