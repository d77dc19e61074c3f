"""A map of the data's classes to those of the model, many to one, as ObjectNet needs it (paper, D.9).

ObjectNet's chair is ImageNet's barber chair, folding chair or rocking chair, and some of its classes are none of
ImageNet's. The file says which:

    {"chair": ["barber chair", "folding chair", "rocking chair"], "banana": "banana"}      JSON
    class,model_class                                                                      CSV, a line per pair
    chair,barber chair

A value may be the number of a model class, from 0, and a text of several names with "; " between them, as in
ObjectNet's own objectnet_to_imagenet_1k.json.
"""

import csv
import io
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitkit.data.sources.dataset import Data, DataError, nfc
from vitkit.errors import ConfigError, did_you_mean
from vitkit.evaluate.matching import MatchedData
from vitkit.model.build import Model
from vitkit.stored_json import parse_json, read_bytes
from vitkit.text import counted, few

CSV_COLUMNS = ["class", "model_class"]
EXAMPLE = '{"chair": ["barber chair", "folding chair"], "banana": "banana"}, or a CSV with the columns ' + ",".join(
    CSV_COLUMNS
)

ClassMap = Mapping[str, Sequence[str | int]]  # class of the data → classes of the model, by name or number

log = logging.getLogger("vitkit")


@dataclass(frozen=True)
class MappedData(MatchedData):
    """Data whose labels are indices of the mapped classes; `missing` is empty."""

    targets: NDArray[np.int64]  # (K,) of each model class: the index of the mapped class, -1 for none


def map_classes(model: Model, data: Data, path: Path) -> MappedData:
    """Match the data's classes with the model's by a file. Images of classes without a match become unlabelled."""
    if data.multilabel or model.metadata.multilabel:
        raise ConfigError("--map is for single-label evaluation: one class per image, one prediction.")
    if not data.classes:
        raise DataError(f"{data.name} has no classes that {path} could map.", found=data.kind)
    content = read_class_map(path)
    pairs = _with_names_of_data(content, data, path)
    finder = _ModelClasses(model, path)
    targets = np.full(model.config.classes, -1, dtype=np.int64)
    mapped = tuple(name for name in data.classes if pairs.get(name))
    for index, name in enumerate(mapped):
        for target in map(finder.index, pairs[name]):
            if targets[target] not in (-1, index):
                raise ConfigError(
                    f"{path}: {finder.name(target)} of the model is in {mapped[targets[target]]} and in {name}.",
                    needed="each class of the model in one class of the data at most",
                )
            targets[target] = index
    if not mapped:
        raise DataError(
            f"{path} maps no class of {data.name}.",
            map=f"{counted(len(content), 'class')}: {few(list(content))}",
            data=f"{counted(len(data.classes), 'class')}: {few(data.classes)}",
        )
    matched, _, extra = data.with_classes(mapped)
    return MappedData(replace(matched, classes=mapped), (), extra, targets)


def read_class_map(path: Path) -> ClassMap:
    """Read a map from JSON or, by the ending .csv, from CSV."""
    try:
        content = read_bytes(path, error=ConfigError)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", expected=EXAMPLE) from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    if path.suffix.lower() == ".csv":
        return _read_csv(path, text)
    kind = dict[str, str | int | list[str | int] | None]
    try:
        values: dict[str, str | int | list[str | int] | None] = parse_json(
            text, kind, os.fspath(path), error=ConfigError
        )
    except ConfigError as error:
        error.add(expected=EXAMPLE)
        raise
    return {nfc(name): _listed(value) for name, value in values.items()}


def _read_csv(path: Path, text: str) -> ClassMap:
    try:
        lines = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise ConfigError(f"{path} is not CSV: {error}.") from error
    if not lines or [column.strip() for column in lines[0]] != CSV_COLUMNS:
        raise ConfigError(
            f"{path} does not begin with the columns of a class map.",
            expected=",".join(CSV_COLUMNS),
            found=",".join(lines[0]) if lines else "an empty file",
        )
    pairs: dict[str, list[str | int]] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not any(map(str.strip, line)):
            continue
        if len(line) != len(CSV_COLUMNS):
            raise ConfigError(f"{path}, line {number}: {counted(len(line), 'value')}, where a line has 2.")
        name, target = line
        pairs.setdefault(nfc(name.strip()), []).extend(_listed(_class_of_model(target)))
    return pairs


def _class_of_model(text: str) -> str | int:
    """Return an index where the text is one; a name of thousands of digits, or of other signs for them, is none."""
    digits = text.strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else text


def _listed(value: str | int | list[str | int] | None) -> list[str | int]:
    """Return the model classes of a value; ObjectNet's file has several names in one text."""
    if isinstance(value, list):
        return [one for each in value for one in ([each] if isinstance(each, int) else _listed(each))]
    if isinstance(value, int):
        return [value]
    return [name.strip() for name in (value or "").split(";") if name.strip()]


def _with_names_of_data(content: ClassMap, data: Data, path: Path) -> dict[str, Sequence[str | int]]:
    """Return the map with the names that the data have; names may differ in case and punctuation ("Alarm clock")."""
    by_letters = _unambiguous([(_letters(name), name) for name in data.classes])
    named: dict[str, Sequence[str | int]] = {}
    others = []
    for name, targets in content.items():
        own = name if name in data.classes else by_letters.get(_letters(name))
        if own is None:
            others.append(name)
        elif own in named:
            raise ConfigError(f"{path} has {own} twice.")
        else:
            named[own] = targets
    for name in others:
        if near := did_you_mean(name, [one for one in data.classes if one not in named]):
            raise ConfigError(f"{path}: {data.name} has no class {name}{near}")
    if others:
        log.warning("%s names %s that the data lack: %s", path, counted(len(others), "class"), few(others))
    return named


class _ModelClasses:
    """The classes of a model, found by number, by name, or by the first of several synonyms."""

    def __init__(self, model: Model, path: Path):
        self.labels, self.count, self.path = model.metadata.labels, model.config.classes, path
        numbered = list(enumerate(self.labels or ()))
        self.numbers: dict[str, list[int]] = {}
        for spelling in (nfc, _letters, _first_synonym):
            for number, label in numbered:
                found = self.numbers.setdefault(f"{spelling.__name__} {spelling(label)}", [])
                found.append(number)

    def name(self, index: int) -> str:
        return self.labels[index] if self.labels else str(index)

    def index(self, target: str | int) -> int:
        if isinstance(target, int):
            if not 0 <= target < self.count:
                raise ConfigError(f"{self.path}: class number {target}, but the model has 0 to {self.count - 1}.")
            return target
        if self.labels is None:
            raise ConfigError(
                f"{self.path} names classes of the model ({target}), but the weights have no names.",
                try_="--labels FILE, one name per line in the order of the logits, or numbers in the map",
            )
        for spelling in (nfc, _letters, _first_synonym):
            found = self.numbers.get(f"{spelling.__name__} {spelling(target)}", [])
            if len(found) > 1:
                raise ConfigError(
                    f"{self.path}: {counted(len(found), 'class')} of the model are called {target}.",
                    try_=f"their numbers instead: {', '.join(map(str, found))}",
                )
            if found:
                return found[0]
        raise ConfigError(f"{self.path}: the model has no class {target}{did_you_mean(target, self.labels) or '.'}")


def _letters(name: str) -> str:
    """Return the letters and digits of a name: "alarm_clock" is "Alarm clock"."""
    return re.sub(r"[\W_]+", "", nfc(name)).casefold()


def _first_synonym(name: str) -> str:
    """Return "rocking chair" of "rocking chair, rocker", as ImageNet's classes are called in full."""
    return _letters(name.partition(",")[0])


def _unambiguous(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    keys = [key for key, _ in pairs]
    return {key: name for key, name in pairs if keys.count(key) == 1}
