"""A look at all the data before training: every picture decoded once, and what would hurt said by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitkit.data.duplicates import identical, near
from vitkit.data.facts import Facts, Memory
from vitkit.data.sources.assemble import unlearnable
from vitkit.data.sources.base import Data, DataError
from vitkit.data.sources.splits import fitting_split
from vitkit.progress import Progress, no_progress
from vitkit.text import counted, few

IMBALANCE = 10.0  # largest class over smallest from which a remark is made
STRETCH = 2_000  # pictures between savings of what was learned
FEW = 10  # pictures of a class under which a remark is made
LARGE = 4_000_000  # pixels of half of the pictures from which a remark is made: 20 ms of a core each, in every epoch

# How pictures are stored that ordinary tools get wrong; here they are merely worth knowing of.
ODD_MODES = {
    "CMYK": "CMYK",
    "P": "palette",
    "PA": "palette",
    "RGBA": "with transparency",
    "LA": "with transparency",
    "I;16": "16-bit",
    "I;16B": "16-bit",
    "I": "16-bit or deeper",
    "F": "floats",
    "uint16": "16-bit",
    "1": "black and white",
    "LAB": "Lab colours",
    "YCbCr": "YCbCr",
}

EIGHT_BITS = {"RGB", "L", "P", "PA", "RGBA", "LA", "CMYK", "YCbCr", "LAB", "1"}


@dataclass(frozen=True)
class Place:
    split: str
    index: int


@dataclass
class Report:
    """What was found; `problems` would hurt training, `remarks` are worth knowing."""

    name: str
    kind: str
    classes: tuple[str, ...]
    pictures: dict[str, int]
    multilabel: bool = False
    bad: list[tuple[str, str]] = field(default_factory=list)  # key, reason
    odd: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)
    per_class: dict[str, dict[str, int]] = field(default_factory=dict)  # split → class → pictures
    duplicates: list[tuple[str, ...]] = field(default_factory=list)  # identical, within a split
    leaks: list[tuple[str, str, str]] = field(default_factory=list)  # key in one split, key in another, how alike
    conflicts: list[tuple[str, str]] = field(default_factory=list)  # identical pictures under different classes
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def check(
    data: Data,
    *,
    channels: int = 3,
    workers: int = 4,
    memory: Memory | None = None,
    progress: Progress = no_progress,
) -> Report:
    """Decode everything, in parallel; what was seen before, by content, is remembered and not decoded again."""
    memory = memory or Memory()
    places = [Place(name, index) for name, split in data.splits.items() for index in range(len(split))]

    def examine(place: Place) -> Facts:
        try:
            return memory.look_up(data.splits[place.split].read(place.index), channels)
        except DataError as error:
            key = data.splits[place.split].keys[place.index]
            return Facts(error=str(error).splitlines()[0].removeprefix(f"{key} "))

    facts = list(progress(_in_parallel(examine, places, workers, memory), len(places), "decoding"))
    report = Report(
        name=data.name,
        kind=data.kind,
        classes=data.classes,
        multilabel=data.multilabel,
        pictures={name: len(split) for name, split in data.splits.items()},
        remarks=list(data.notes),
    )
    _judge_files(report, data, places, facts)
    _judge_classes(report, data)
    _judge_copies(report, data, places, facts)
    return report


def _in_parallel(
    examine: Callable[[Place], Facts], places: list[Place], workers: int, memory: Memory
) -> Iterator[Facts]:
    """In order, a stretch at a time; what a stretch has taught is kept even if the next is interrupted."""
    with ThreadPoolExecutor(max(workers, 1)) as pool:  # decoding leaves Python's lock, so threads are enough
        for first in range(0, len(places), STRETCH):
            try:
                yield from pool.map(examine, places[first : first + STRETCH])
            finally:
                memory.save()


def _judge_files(report: Report, data: Data, places: list[Place], facts: list[Facts]) -> None:
    report.bad = [(_key(data, place), one.error) for place, one in zip(places, facts, strict=True) if one.error]
    whole = [one for one in facts if not one.error]
    if report.bad:
        report.problems.append(f"{len(report.bad):,} of {len(facts):,} pictures cannot be decoded")
    if not whole:
        report.problems.append("there is not one whole picture")
        return
    odd = Counter(ODD_MODES[one.mode] for one in whole if one.mode in ODD_MODES)
    odd.update(
        {
            "turned upright by Exif": sum(one.turned for one in whole),
            "animated, first frame used": sum(one.frames > 1 for one in whole),
        }
    )
    report.odd = {what: count for what, count in odd.most_common() if count}
    heights, widths = (np.array([getattr(one, side) for one in whole]) for side in ("height", "width"))
    shapes = widths / heights
    report.sizes = {
        "smallest": _size_at(heights, widths, int((heights * widths).argmin())),
        "median": [int(np.median(heights)), int(np.median(widths))],
        "largest": _size_at(heights, widths, int((heights * widths).argmax())),
        "widest": round(float(shapes.max()), 2),
        "tallest": round(float(shapes.min()), 2),
    }
    shrinkable = [one.height * one.width for one in whole if one.mode in EIGHT_BITS]
    if len(shrinkable) > len(whole) / 2 and (pixels := float(np.median(shrinkable))) > LARGE:
        report.remarks.append(
            f"half of the pictures have more than {pixels / 1e6:.0f} megapixels, all decoded again "
            "in every epoch; vitkit shard DATA small/ --side 512 makes them smaller once"
        )


def _judge_classes(report: Report, data: Data) -> None:
    if not data.classes:
        report.remarks.append("unlabelled: good for pre-training, not for fitting a classifier")
        return
    for name, split in data.splits.items():
        per_class = split.per_class(len(data.classes)).tolist()
        report.per_class[name] = dict(zip(data.classes, per_class, strict=True))
    if len(data.classes) == 1:
        report.problems.append("there is only one class: nothing to tell apart")
    try:
        fitted = fitting_split(data)
    except DataError as error:
        report.problems.append(str(error).splitlines()[0])
        return
    counts = report.per_class[fitted]
    untaught = [label for label, count in counts.items() if not count]
    if untaught:
        told = unlearnable(fitted, untaught)
        report.problems.append(told)
        report.remarks = [remark for remark in report.remarks if remark != told]  # a note of the data: once is enough
    scarce = [label for label, count in counts.items() if 0 < count < FEW]
    if scarce:
        report.remarks.append(
            f"{counted(len(scarce), 'class has', 'classes have')} fewer than {FEW} pictures in {fitted}: {few(scarce)}"
        )
    taught = [count for count in counts.values() if count]
    if taught and max(taught) >= IMBALANCE * min(taught):
        report.remarks.append(
            f"the largest class of {fitted} has {max(taught) / min(taught):.0f} times the pictures of the smallest"
        )


def _judge_copies(report: Report, data: Data, places: list[Place], facts: list[Facts]) -> None:
    for group in identical(facts):
        members = [places[index] for index in group]
        by_split: dict[str, list[Place]] = {}
        for member in members:
            by_split.setdefault(member.split, []).append(member)
        report.duplicates += [tuple(_key(data, one) for one in same) for same in by_split.values() if len(same) > 1]
        first, *others = [same[0] for same in by_split.values()]
        report.leaks += [(_key(data, first), _key(data, other), "identical") for other in others]
        odd_one = next((one for one in members if not _same_label(data, members[0], one)), None)
        if odd_one:
            report.conflicts.append((_key(data, members[0]), _key(data, odd_one)))
    for one, other in near(facts, [place.split for place in places]):
        report.leaks.append((_key(data, places[one]), _key(data, places[other]), "nearly identical"))
    exact = sum(how == "identical" for *_, how in report.leaks)
    if exact:
        report.problems.append(f"{exact:,} pictures stand in two splits: scores on them mean nothing")
    if len(report.leaks) > exact:
        report.remarks.append(f"{len(report.leaks) - exact:,} pictures look nearly the same in two splits")
    if report.conflicts:
        report.problems.append(f"{len(report.conflicts):,} identical pictures stand under different classes")
    if report.duplicates:
        extra = sum(len(group) - 1 for group in report.duplicates)
        report.remarks.append(f"{extra:,} pictures are there more than once within a split")


def _same_label(data: Data, one: Place, other: Place) -> bool:
    first, second = (np.asarray(data.splits[place.split].labels[place.index]) for place in (one, other))
    unlabelled = first.ndim == 0 and (first < 0 or second < 0)
    return bool(unlabelled or np.array_equal(first, second))


def _key(data: Data, place: Place) -> str:
    return data.splits[place.split].keys[place.index]


def _size_at(heights: np.ndarray, widths: np.ndarray, index: int) -> list[int]:
    return [int(heights[index]), int(widths[index])]
