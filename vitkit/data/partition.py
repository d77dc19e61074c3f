"""Partition the images into training, validation and test; missing splits are held out, stratified and seeded.

Images of one group (`Split.groups`: copies of an image, images of one patient) are never on two sides of a split.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Required, TypedDict

import numpy as np
from numpy.typing import NDArray

from vitkit.data.label_check import check_labels
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.sources.splits import ALL, scoring_split, training_split, validation_split
from vitkit.data.sparse_labels import SparseLabels, SplitLabels
from vitkit.data.stratified import stratified as stratified
from vitkit.data.subset import SubsetRecord, describe_subset, draw_images, subset_by_share
from vitkit.data.subset import subset_per_class as draw_per_class
from vitkit.text import counted, few

SUPERVISED = ("labels", "segment")  # the objectives that read labels or masks, so that images are held out for scores
SPARSE = "sparse:"  # before the fingerprint of multi-label data, whose labels are hashed as class numbers


class HeldOutRecord(TypedDict, total=False):
    """The part of a run's record that says which images were held out for testing."""

    source: Required[str]
    share: Required[float]
    seed: Required[int]
    fingerprint: Required[str]
    groups: str


@dataclass(frozen=True)
class Partition:
    """The images of a run by purpose."""

    train: Split
    validation: Split | None  # for choosing: learning rates, early stopping
    test: Split | None  # for the final score
    test_name: str  # test, val, or held-out where it was cut from another split
    description: tuple[str, ...]  # "3,680 trainval", …
    held_out: dict[str, Any] | None  # how `test` was cut from a split, so that an evaluation can repeat it
    notes: tuple[str, ...] = ()  # for people: classes that could not be divided, or have few images
    subset: SubsetRecord | None = None  # how `train` was drawn from the training images

    @property
    def to_choose_by(self) -> Split | None:
        """Return the validation images, unless the test images are the same: what is chosen by them is not scored."""
        one, other = self.validation, self.test
        if one is not None and other is not None and one.store is other.store and np.isin(one.rows, other.rows).any():
            return None
        return one


def partition(
    data: Data,
    *,
    objective: str = "labels",
    test: float = 0.2,
    dev: float = 0.0,
    split_seed: int = 0,
    patience: int = 0,
    subset: float | None = None,
    subset_per_class: int | None = None,
    subset_images: int | None = None,
) -> Partition:
    """Assign the splits of the data to training, validation and test, and hold out what they lack.

    The options are the settings of a run by the same names: shares to hold out, the seed, whether the run stops early
    by validation, and the subset of the training images that is left when all of that has been held out.
    """
    divided = _divide(data, objective, test, dev, split_seed, patience)
    if subset is None and subset_per_class is None and subset_images is None:
        return divided
    labels: SplitLabels = divided.train.labels
    if objective not in SUPERVISED:
        labels = np.zeros(len(divided.train), np.int64)  # they are not read
    if subset_images is not None:
        train = draw_images(divided.train, subset_images, split_seed)
    elif subset_per_class is not None:
        train = divided.train.select(draw_per_class(labels, subset_per_class, split_seed))
    else:
        train = divided.train.select(subset_by_share(labels, subset or 1.0, split_seed))
    record: SubsetRecord = {
        "share": subset,
        "per_class": subset_per_class,
        "number": subset_images,
        "seed": split_seed,
        "images": len(train),
        "of": len(divided.train),
    }
    notes = divided.notes
    if subset_per_class is not None:
        notes += _too_few_notes(data, divided.train, subset_per_class)
    if subset_images is not None and objective == "labels":  # masks have no class per image
        notes += _not_drawn_notes(data, divided.train, train)
    description = (*divided.description, describe_subset(record))
    return replace(divided, train=train, description=description, notes=notes, subset=record)


def _too_few_notes(data: Data, train: Split, number: int) -> tuple[str, ...]:
    counts = train.per_class(len(data.classes))
    fewer = [f"{data.classes[index]} ({counts[index]:,})" for index in np.flatnonzero(counts < number)]
    if not fewer:
        return ()
    classes = counted(len(fewer), "class has", "classes have")
    return (f"{classes} fewer than {number:,} training images, of which all are used: {few(fewer)}",)


def _not_drawn_notes(data: Data, every: Split, drawn: Split) -> tuple[str, ...]:
    """Return a note on classes that a draw regardless of class has left without an image."""
    before, after = (split.per_class(len(data.classes)) for split in (every, drawn))
    absent = [
        f"{data.classes[index]} (0 of {before[index]:,})" for index in np.flatnonzero((before > 0) & (after == 0))
    ]
    if not absent:
        return ()
    classes, them = counted(len(absent), "class has", "classes have"), "it" if len(absent) == 1 else "them"
    return (
        f"{classes} no image among the {len(drawn):,} drawn, so that nothing can be learned about {them}: "
        f"{few(absent)}; a larger subset_images may have {them}, subset and subset_per_class have every class",
    )


def _divide(data: Data, objective: str, test: float, dev: float, split_seed: int, patience: int) -> Partition:
    """Return the partition with all training images."""
    name = training_split(data)
    train = data.splits[name]
    if objective not in SUPERVISED:  # labels are not read, and nothing is held out
        return Partition(train, None, None, "", (f"{len(train):,} images of {name}",), None)
    train, record = _labelled(train), None
    notes: tuple[str, ...] = ()
    test_name = _test_name(data, name)
    check_labels(data, name, train, has_test=test_name is not None)
    if test_name is None:
        record = {"source": name, "share": test, "seed": split_seed, "fingerprint": fingerprint(data, name)}
        if train.groups is not None:
            record["groups"] = groups_digest(train.groups)
        train, tested = _hold_out(train, test, split_seed, "testing", "more images, or a test/ folder")
        notes = () if data.task == "segment" else _undivided_note(data, train, tested)
        of = "the images" if data.task == "segment" else "each class"
        share = f"{test:.0%} of {of}" if train.groups is None else f"about {test:.0%} of {of}, in groups"
        source = "" if name == ALL else f" from {name}"  # the user did not name that split
        description = [f"{len(train):,} train", f"{len(tested):,} test, held out{source} ({share})"]
    else:
        tested = _labelled(data.splits[test_name])
        description = [f"{len(train):,} {name}", f"{len(tested):,} {test_name}"]
    validation_name = _validation_name(data, test_name, tunes=bool(dev or patience))
    validation = _labelled(data.splits[validation_name]) if validation_name else None
    if validation is not None and validation_name != test_name:
        description.insert(1, f"{len(validation):,} {validation_name}")
    if validation is None and dev:
        train, validation = _hold_out(train, dev, split_seed + 1, "validation", "more images, or a val/ folder")
        description.insert(1, f"{len(validation):,} of them held out for validation")
    return Partition(train, validation, tested, test_name or "held-out", tuple(description), record, notes)


def fingerprint(data: Data, split: str) -> str:
    """Return a hash of a split's names, classes and labels: enough to recognise it without reading an image."""
    labels, digest = data.splits[split].labels, _hash_of_names(data, split)
    if not isinstance(labels, SparseLabels):
        digest.update(np.ascontiguousarray(labels).tobytes())
        return digest.hexdigest()
    for values in (labels.offsets.astype("<i8"), labels.numbers.astype("<i4")):
        digest.update(values.tobytes())
    return SPARSE + digest.hexdigest()


def is_fingerprint(expected: str, data: Data, split: str) -> bool:
    """Return whether a record's fingerprint is that of the split; runs of earlier versions hashed dense labels."""
    labels = data.splits[split].labels
    if expected.startswith(SPARSE) or not isinstance(labels, SparseLabels):
        return expected == fingerprint(data, split)
    digest = _hash_of_names(data, split)
    for _, table in labels.dense_blocks():
        digest.update(table.tobytes())
    return expected == digest.hexdigest()


def is_held_out(record: Mapping[str, Any], data: Data, held_out: Mapping[str, Any]) -> bool:
    """Return whether a run's record names the same held-out images of the data as `held_out`."""
    names = (record.keys() | held_out.keys()) - {"fingerprint"}
    return all(record.get(name) == held_out.get(name) for name in names) and is_fingerprint(
        record["fingerprint"], data, held_out["source"]
    )


def _hash_of_names(data: Data, split: str) -> "hashlib._Hash":
    digest = hashlib.sha256()
    for text in (*data.classes, "\0"):
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    for block, stops in data.splits[split].keys.blocks():
        digest.update(np.insert(block, stops, 0).data)  # a zero byte after each name
    return digest


def held_out_test(data: Data, record: Mapping[str, Any]) -> Data | None:
    """Return the data with the images that a run held out as their only split, `test`; None for other data."""
    source = record["source"]
    if source not in data.splits or not is_fingerprint(record["fingerprint"], data, source):
        return None
    labelled = _labelled(data.splits[source])
    groups = labelled.groups if "groups" in record else None  # an older run did not know about them
    if "groups" in record and (groups is None or groups_digest(groups) != record["groups"]):
        return None
    _, chosen = stratified(labelled.labels, record["share"], record["seed"], groups)
    return replace(data, splits={"test": labelled.select(chosen)})


def groups_digest(groups: NDArray[np.int64]) -> str:
    """Return a short hash of which images are together, whatever the numbers of the groups."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return hashlib.sha256(first[inverse].astype("<i8").tobytes()).hexdigest()[:16]


def _test_name(data: Data, fitted: str) -> str | None:
    """Return the split to score, unless training uses its images."""
    try:
        name = scoring_split(data)
    except DataError:
        return None
    return None if name == fitted else name


def _validation_name(data: Data, test_name: str | None, *, tunes: bool) -> str | None:
    """Return the validation split. One that is scored as well may be watched; tuning on it would inflate the score."""
    name = validation_split(data)
    if name is None or not data.splits[name].labelled or (name == test_name and tunes):
        return None
    return name


def _hold_out(split: Split, share: float, seed: int, purpose: str, advice: str) -> tuple[Split, Split]:
    kept, chosen = stratified(split.labels, share, seed, split.groups)
    if len(chosen) == 0 or len(kept) == 0:
        alike = "no two" if split.masks else "no two of a class"
        apart = alike if split.groups is None else f"{alike} that are neither copies nor a group"
        raise DataError(f"{len(split)} images, {apart}, are too few to hold some out for {purpose}.", try_=advice)
    return split.select(kept), split.select(chosen)


def _undivided_note(data: Data, train: Split, tested: Split) -> tuple[str, ...]:
    """Return notes on classes none of whose images is scored: they have a single one, or all are of one group."""
    if data.task == "segment":
        return ()
    counts, scored = train.per_class(len(data.classes)), tested.per_class(len(data.classes))
    unscored = [(name, kept) for name, kept, held_out in zip(data.classes, counts, scored, strict=True) if not held_out]
    single = [name for name, kept in unscored if kept == 1]
    undivided = [name for name, kept in unscored if kept > 1]
    notes = []
    if single:
        has = "it has one image" if len(single) == 1 else "they have one image each"
        notes.append(f"no image of {few(single)} is scored: {has}, which training needs")
    if undivided:
        many = "its" if len(undivided) == 1 else "their"
        notes.append(
            f"no image of {few(undivided)} is scored: all of {many} images are copies of each other or of one group"
        )
    return tuple(notes)


def _labelled(split: Split) -> Split:
    return split if split.count_labelled() == len(split) else split.select(split.rows_with_labels())
