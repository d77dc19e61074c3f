"""Match the classes of a model with those of the data by name.

Only ImageNet's 1000 classes are matched by index: every model has them in the order of their synsets.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitkit.data.sources.dataset import Data, DataError
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.regular_file import open_regular
from vitkit.text import counted, few

IMAGENET = 1000
DUPLICATES_SHOWN = 5
FIRST, LAST = "tench", "toilet tissue"  # English names of ImageNet's classes 0 and 999

log = logging.getLogger("vitkit")


@dataclass(frozen=True)
class MatchedData:
    data: Data  # its labels are indices of the model's classes
    missing: tuple[str, ...]  # classes that only the model has
    extra: tuple[str, ...]  # classes that only the data have


def match_classes(model: Model, data: Data) -> MatchedData:
    labels = model.metadata.labels
    if not model.config.classes:
        raise ConfigError(
            "the model has no classes to predict: it was pre-trained without labels, or its head was removed.",
            try_="vitkit fit DATA --weights RUN, then evaluate that run",
        )
    if not data.classes:
        raise DataError(
            f"{data.name} has no labels to score against.",
            found=data.kind,
            **({"note": data.notes} if data.notes else {}),
            try_="a folder for each class, or a manifest; masks are scored with a model that was trained on masks",
        )
    no_common_class = labels is None or not set(labels) & set(data.classes)
    if no_common_class and _are_synsets(data.classes) and in_imagenet_order(model):
        log.warning(
            "%s: ImageNet's 1000 synsets are matched with the model's classes by index",
            "the weights have no class names" if labels is None else "the model's classes are in English",
        )
        return MatchedData(replace(data, classes=labels or data.classes), (), ())
    if labels is None:
        raise DataError(
            f"the weights have no names for their {model.config.classes} classes, which therefore "
            f"cannot be matched with {data.name}.",
            found=f"{counted(len(data.classes), 'class')} in the data: {few(data.classes)}",
            try_="--labels FILE, one name per line, in the order of the logits",
        )
    for name, times in Counter(labels).items():
        if times > 1 and name in data.classes:
            log.warning(
                "%d classes of the model are called %s; images of that name count for the last of them", times, name
            )
    matched, missing, extra = data.with_classes(labels)
    if len(extra) == len(data.classes):
        raise DataError(
            f"the model and {data.name} have no class in common.",
            model=f"{counted(len(labels), 'class')}: {few(labels)}",
            data=f"{counted(len(data.classes), 'class')}: {few(data.classes)}",
            try_="--labels FILE, the data's names in the order of the logits, if the classes are the same",
        )
    return MatchedData(matched, missing, extra)


def in_imagenet_order(model: Model) -> bool:
    """Return whether the model has ImageNet's classes, as synsets, in English, or as 1000 without names."""
    labels = model.metadata.labels
    if model.config.classes != IMAGENET:
        return False
    return labels is None or _are_synsets(labels) or (FIRST in labels[0] and LAST in labels[-1])


def _are_synsets(names: Sequence[str]) -> bool:
    """Return whether these are the 1000 synsets, n01440764 to n15075141, in order."""
    return (
        len(names) == IMAGENET
        and list(names) == sorted(set(names))
        and all(re.fullmatch(r"n\d{8}", name) for name in names)
    )


def class_names(labels: Sequence[str] | str | os.PathLike[str], classes: int) -> tuple[str, ...]:
    """Return class names in the order of the logits, from a file of them or as they are."""
    if isinstance(labels, str | os.PathLike):
        return read_labels(Path(labels), classes)
    if len(labels) != classes:
        raise ConfigError(f"{len(labels)} class names for a model of {classes} classes")
    return tuple(labels)


def read_labels(path: Path, classes: int) -> tuple[str, ...]:
    """Read a file with one class name per line, in the order of the logits."""
    try:
        with open_regular(path, "r", encoding="utf-8-sig") as file:
            lines = file.read().rstrip().split("\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    names = tuple(line.strip() for line in lines)
    if len(names) != classes:
        raise ConfigError(
            f"{path} names {len(names)} classes; the model has {classes}.",
            expected="one name per line, in the order of the logits",
        )
    if "" in names:
        raise ConfigError(f"{path}: line {names.index('') + 1} is empty.")
    _refuse_duplicates(path, names)
    return names


def _refuse_duplicates(path: Path, names: Sequence[str]) -> None:
    """Raise an error if two classes have the same name: neither predictions nor scores could tell them apart."""
    lines: dict[str, list[int]] = {}
    for number, name in enumerate(names, start=1):
        lines.setdefault(name, []).append(number)
    duplicates = [f"lines {' and '.join(map(str, found))}: {name}" for name, found in lines.items() if len(found) > 1]
    if duplicates:
        raise ConfigError(
            f"{path} names {counted(len(duplicates), 'class')} more than once.",
            found=duplicates[:DUPLICATES_SHOWN] + ["…"] * (len(duplicates) > DUPLICATES_SHOWN),
            try_="names that differ, such as crane (bird) and crane (machine)",
        )
