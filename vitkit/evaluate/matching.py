"""Whose class 3 is which? A model's classes and the data's, matched by name.

By place only where the place is the name: ImageNet's 1000 classes, which everyone trains in the order of their synsets.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitkit.data.sources.base import Data, DataError
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.text import few

IMAGENET = 1000
FIRST, LAST = "tench", "toilet tissue"  # in English, of ImageNet's classes in the order of their synsets

log = logging.getLogger("vitkit")


@dataclass(frozen=True)
class Matched:
    data: Data  # its labels count in the model's classes
    missing: tuple[str, ...]  # classes that only the model has
    extra: tuple[str, ...]  # classes that only the data have


def match(model: Model, data: Data) -> Matched:
    labels = model.metadata.labels
    if not model.config.classes:
        raise ConfigError(
            "the model has no classes to answer with: it was pre-trained, or its head was taken off.",
            try_="vitkit fit DATA --weights RUN, then evaluate that run",
        )
    if not data.classes:
        raise DataError(
            f"{data.name} has no labels to score against.",
            found=data.kind,
            **({"note": data.notes} if data.notes else {}),
        )
    strangers = labels is None or not set(labels) & set(data.classes)
    if strangers and _are_synsets(data.classes) and in_imagenet_order(model):
        log.warning(
            "%s: ImageNet's 1000 synsets, matched with the model's classes by place",
            "the weights carry no class names" if labels is None else "classes in English",
        )
        return Matched(replace(data, classes=labels or data.classes), (), ())
    if labels is None:
        raise DataError(
            f"the weights carry no names for their {model.config.classes} classes, so that their answers "
            f"cannot be matched with {data.name}.",
            found=f"{len(data.classes)} classes in the data: {few(data.classes)}",
            try_="--labels FILE, one name on each line, in the order of the logits",
        )
    for name, times in Counter(labels).items():
        if times > 1 and name in data.classes:
            log.warning(
                "%d classes of the model are called %s; pictures of that name count for the last of them", times, name
            )
    matched, missing, extra = data.with_classes(labels)
    if len(extra) == len(data.classes):
        raise DataError(
            f"the model and {data.name} have no class in common.",
            model=f"{len(labels)} classes: {few(labels)}",
            data=f"{len(data.classes)} classes: {few(data.classes)}",
            try_="--labels FILE, the data's names in the order of the logits, if they mean the same things",
        )
    return Matched(matched, missing, extra)


def in_imagenet_order(model: Model) -> bool:
    """Synsets, the names in English, or no names at all: nobody is known to order 1000 classes in another way."""
    labels = model.metadata.labels
    if model.config.classes != IMAGENET:
        return False
    return labels is None or _are_synsets(labels) or (FIRST in labels[0] and LAST in labels[-1])


def _are_synsets(names: Sequence[str]) -> bool:
    """n01440764 to n15075141, all of them, in order."""
    return (
        len(names) == IMAGENET
        and list(names) == sorted(set(names))
        and all(re.fullmatch(r"n\d{8}", name) for name in names)
    )


def read_labels(path: Path, classes: int) -> tuple[str, ...]:
    """One name on each line, in the order of the logits."""
    try:
        lines = path.read_text(encoding="utf-8-sig").rstrip().split("\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8: {error}") from error
    names = tuple(line.strip() for line in lines)
    if len(names) != classes:
        raise ConfigError(
            f"{path} names {len(names)} classes; the model has {classes}.",
            expected="one name on each line, in the order of the logits",
        )
    if "" in names:
        raise ConfigError(f"{path} has an empty line, number {names.index('') + 1}.")
    return names
