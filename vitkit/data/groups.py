"""Which images stay together: copies of an image and images of one group are never on two sides of a split.

Splits that vitkit makes keep them together (`Split.groups`). For splits that the user made, `Split.leaked` says which
images have a copy among the training images, or share a group with them. Both are stored in the record of a run, so
that it can be resumed and evaluated on exactly the same images.
"""

import base64
import contextlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from vitkit.data.copies import LARGEST_CHAIN, Copies, group_copies
from vitkit.data.fingerprint import read_fingerprints
from vitkit.data.partition import fingerprint, is_fingerprint
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.sources.splits import scoring_split, training_split, validation_split
from vitkit.data.sparse_labels import SparseLabels
from vitkit.text import counted

Duplicates = Literal["auto", "together", "ignore"]

MOST_IMAGES = 5_000_000  # "auto" looks for copies in so many: their thumbnails take 1.3 GB of memory
LINES, GROUPS, LEAKED = "lines", "groups", "leaked"  # keys of the record


class Leak(IntEnum):
    """The relation of an image outside of the training split to the training images; the closest one counts."""

    NONE = 0
    GROUP = 1  # it is in a group that has training images, too
    NEAR = 2  # it is a near duplicate of a training image
    IDENTICAL = 3  # it has the same bytes as a training image


class ColumnRecord(TypedDict):
    images: str  # a number for each image, as `_encode` writes them
    fingerprint: str  # of the split


class TogetherRecord(TypedDict, total=False):
    lines: list[tuple[str, str]]
    groups: dict[str, ColumnRecord]
    leaked: dict[str, ColumnRecord]


@dataclass(frozen=True)
class KeptTogether:
    data: Data  # with groups and leaks
    lines: tuple[tuple[str, str], ...]  # a label and what was found, to be printed


def keep_together(data: Data, *, duplicates: Duplicates = "auto", **reading: Any) -> KeptTogether:
    """Find the copies among the images, and return the data with them in groups.

    `reading` are the options of `read_fingerprints`.
    """
    training = training_split(data)
    # all images are counted in one order: the training split's, then those that are scored or validated on
    names = compared_splits(data)
    splits = [data.splits[name] for name in names]
    images = sum(map(len, splits))
    ignored = not should_find_copies(data, duplicates)
    copies = Copies.none(images) if ignored else Copies.of(read_fingerprints(splits, **reading))
    train = splits[0]
    groups, apart = group_copies(train, copies)
    # all images of the training split can be held out: where every copy stays on one side, none is leaked
    unleaked = None if ignored or apart else np.zeros(len(train), np.uint8)
    chosen = {training: replace(train, groups=groups, leaked=unleaked)}
    first = len(train)
    for name, split in zip(names[1:], splits[1:], strict=True):
        leaked = _leaks(train, split, first, copies)
        chosen[name] = replace(split, groups=None, leaked=None if ignored and not leaked.any() else leaked)
        first += len(split)
    result = replace(data, splits={name: chosen.get(name, data.splits[name]) for name in data.splits})
    lines = [("copies", _describe_copies(train, copies, images, duplicates, ignored))]
    if conflict := _describe_conflicts(train, copies):
        lines.append(("warning", conflict))
    if apart:
        lines.append(("warning", _describe_chain(apart)))
    lines += [("warning", text) for name in names[1:] if (text := leak_warning(name, chosen[name]))]
    return KeptTogether(result, tuple(lines))


def should_find_copies(data: Data, duplicates: Duplicates) -> bool:
    images = sum(len(data.splits[name]) for name in compared_splits(data))
    return duplicates == "together" or (duplicates == "auto" and images <= MOST_IMAGES)


def compared_splits(data: Data) -> list[str]:
    """Return the splits that a run uses, that of training first."""
    training = training_split(data)
    names: set[str | None] = {validation_split(data)}
    with contextlib.suppress(DataError):
        names.add(scoring_split(data))
    return [training, *(name for name in data.splits if name != training and name in names)]


def leak_warning(name: str, split: Split) -> str:
    """Return a warning where images of a split that the user made have copies among the training images, else ""."""
    if split.leaked is None or not split.leaked.any():
        return ""
    kinds = [int((split.leaked == kind).sum()) for kind in (Leak.IDENTICAL, Leak.NEAR, Leak.GROUP)]
    return (
        f"of {counted(len(split), f'{name} image')}, {describe_leaks(*kinds)}: a score on them says little about new "
        "images"
    )


def describe_leaks(identical: int, nearly_identical: int, grouped: int) -> str:
    """Return "18 are copies of training images (12 identical, 6 nearly identical)" for numbers of leaked images."""
    copies = identical + nearly_identical
    kinds = [
        f"{number:,} {word}"
        for number, word in ((identical, "identical"), (nearly_identical, "nearly identical"))
        if number
    ]
    parts = [f"{counted(copies, 'is a copy', 'are copies')} of training images ({', '.join(kinds)})"] * bool(copies)
    parts += [f"{counted(grouped, 'shares', 'share')} a group with training images"] * bool(grouped)
    return " and ".join(parts)


def _leaks(train: Split, split: Split, first: int, copies: Copies) -> NDArray[np.uint8]:
    """Return the Leak of each image of a split whose images come from index `first` on."""
    own = copies.content[first : first + len(split)]  # a training image, where there is one with the same bytes
    leaked = np.zeros(len(split), np.uint8)
    if train.groups is not None and split.groups is not None:
        leaked[np.isin(split.groups, train.groups)] = Leak.GROUP
    trained = copies.near.first < len(train)  # the training split comes first, and so do first images in it
    leaked[np.isin(own, copies.near.second[trained])] = Leak.NEAR
    leaked[own < len(train)] = Leak.IDENTICAL
    return leaked


def _describe_copies(train: Split, copies: Copies, images: int, duplicates: Duplicates, ignored: bool) -> str:
    if ignored:
        why = "duplicates = ignore" if duplicates == "ignore" else f"over {MOST_IMAGES:,} images"
        return f"not looked for ({why}): copies of training images may be among the scored ones"
    count = len(train)
    identical = int((copies.content[:count] != np.arange(count)).sum())
    inside = copies.near.second < count
    near = len(np.unique(copies.near.second[inside]))
    if not identical and not near:
        return f"none among {counted(count, 'training image')}" if images > count else f"none among {images:,} images"
    kinds = [f"{number:,} {word}" for number, word in ((identical, "identical"), (near, "nearly identical")) if number]
    noun = counted(identical + near, "image is a copy", "images are copies")
    return f"{noun} of others ({', '.join(kinds)}); copies stay on one side of every split"


def _describe_conflicts(train: Split, copies: Copies) -> str:
    """Return a warning about identical training images with different labels, else ""."""
    first = copies.content[: len(train)]
    copied = np.flatnonzero(first != np.arange(len(train)))
    labels = train.labels
    differ = (
        labels.differ(copied, first[copied])
        if isinstance(labels, SparseLabels)
        else labels[copied] != labels[first[copied]]
    )
    found = copied[differ]
    if not len(found):
        return ""
    number = counted(len(found), "image has a copy", "images have copies")
    example = f"{train.keys[int(found[0])]} and {train.keys[int(first[found[0]])]}"
    return f"{number} with another label, such as {example}: vitkit check lists all of them"


def _describe_chain(apart: int) -> str:
    return (
        f"{counted(apart, 'image')} in long chains of near duplicates: only the most similar of them stay together, "
        f"and no chain takes up more than half of a class or {LARGEST_CHAIN:,} images; groups of the setting group "
        "have no such limit"
    )


def record_of(kept: KeptTogether) -> dict[str, Any]:
    """Return what was found as a record for JSON, with which `restore` repeats it without reading an image."""
    columns: dict[str, dict[str, Any]] = {GROUPS: {}, LEAKED: {}}
    for name, split in kept.data.splits.items():
        for column, values in ((GROUPS, split.groups), (LEAKED, split.leaked)):
            if values is not None:
                columns[column][name] = {"images": _encode(values), "fingerprint": fingerprint(kept.data, name)}
    return {LINES: [list(line) for line in kept.lines], **columns}


def restore(data: Data, record: Mapping[str, Any] | None) -> KeptTogether:
    """Return the data with the groups and leaks of a record; a run that has none, from before it was kept, has none."""
    record = record or {}
    splits = {}
    for name, split in data.splits.items():
        columns: dict[str, NDArray[Any] | None] = {GROUPS: None, LEAKED: None}
        for column in columns:
            entry = record.get(column, {}).get(name)
            if entry is not None and is_fingerprint(entry["fingerprint"], data, name):
                try:
                    columns[column] = _decode(entry["images"], len(split))
                except (ValueError, zlib.error) as error:
                    raise DataError(
                        f"the record of the run is damaged: together.{column}.{name} cannot be read: {error}.",
                        try_="run.json from a copy of the run folder, or a new run",
                    ) from error
        leaked = columns[LEAKED]
        splits[name] = replace(
            split, groups=columns[GROUPS], leaked=None if leaked is None else leaked.astype(np.uint8)
        )
    lines = tuple((str(label), str(text)) for label, text in record.get(LINES, ()))
    return KeptTogether(replace(data, splits=splits), lines)


def _encode(values: NDArray[Any]) -> str:
    """Encode numbers as text: mostly, a group has the number of its own image, or the one of its neighbour."""
    steps = np.diff(values.astype(np.int64), prepend=-1)
    return base64.b85encode(zlib.compress(steps.astype("<i4").tobytes(), 9)).decode()


def _decode(text: str, count: int) -> NDArray[np.int64]:
    expected = count * np.dtype("<i4").itemsize
    content = zlib.decompressobj().decompress(base64.b85decode(text), expected + 1)  # a few bytes can hold gigabytes
    if len(content) != expected:
        raise ValueError(f"other numbers than those of {count:,} images")
    steps = np.frombuffer(content, "<i4").astype(np.int64)
    return np.cumsum(steps) - 1
