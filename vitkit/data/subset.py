"""Subsets of the training images: seeded, stratified and nested, so that a learning curve adds images and changes none.

Every image has a position between 0 and 1, drawn once: the images of a class are shuffled and spread evenly over that
range. A share takes the positions below it, so the 1 % is part of the 10 %. At least one image of each class is taken,
as in the field's low-data sets: a class without any cannot be learned, and could only lower the score.

With several labels, an image is spread with the rarest one it has, and a number per class is a least number: images are
added, for rare classes first, until each class has one, then two, and so on, so the 5 are part of the 20.

A number of images is drawn regardless of class, as in VTAB: nested as well, but not stratified.

Shapes: n images, K classes.
"""

from typing import Required, TypedDict

import numpy as np
from numpy.typing import NDArray

from vitkit.data.sources.dataset import Split
from vitkit.data.sparse_labels import SparseLabels, SplitLabels
from vitkit.data.stateless_rng import generator
from vitkit.data.stratified import members_of_classes, strata

SUBSET = 0x5EB5  # sets these draws apart from those of held-out images, which have the same seed
DRAWING = 0x7AB1  # sets draws regardless of class apart from both

Ints = NDArray[np.int64]


class SubsetRecord(TypedDict, total=False):
    """The part of a run's record that says which of the training images it used."""

    share: float | None
    per_class: int | None
    number: int | None  # of images, whatever their class
    seed: Required[int]
    images: Required[int]
    of: Required[int]  # training images, without those held out


def subset_by_share(labels: SplitLabels, share: float, seed: int = 0) -> Ints:
    """Return the sorted indices of a share of the images, each class in proportion and with one image at least."""
    positions = _positions(strata(labels), seed)
    if share >= 1:
        return np.arange(len(positions))
    return np.flatnonzero((positions < share) | _per_class(labels, positions, 1))


def subset_per_class(labels: SplitLabels, number: int, seed: int = 0) -> Ints:
    """Return the sorted indices of so many images of each class, or of all that a class has.

    Where images have several labels, classes may have more; images without a label are not taken.
    """
    return np.flatnonzero(_per_class(labels, _positions(strata(labels), seed), number))


def draw_images(split: Split, count: int, seed: int = 0) -> Split:
    """Draw so many images at random, regardless of class as VTAB does: a rare class may be missing.

    A smaller draw of the same seed is the beginning of a larger one.
    """
    return split.select(generator(seed, DRAWING).permutation(len(split))[:count])


def subset_size(
    images: int, classes: int, share: float | None, per_class: int | None, number: int | None = None
) -> int:
    """Return about how many of the training images a subset has, before they are known."""
    if number is not None:
        return min(number, images)
    if share is not None:
        return max(round(share * images), min(classes, images))
    return images if per_class is None else min(per_class * classes, images)


def describe_subset(record: SubsetRecord) -> str:
    """Return a phrase such as "369 of 3,680 used for training (subset = 0.1)"."""
    settings = {"subset": "share", "subset_per_class": "per_class", "subset_images": "number"}
    setting = next(f"{name} = {record[key]:g}" for name, key in settings.items() if record.get(key) is not None)  # type: ignore[literal-required]
    return f"{record['images']:,} of {record['of']:,} used for training ({setting})"


def _positions(classes: Ints, seed: int) -> NDArray[np.float64]:
    """Return (n,) the position of each image, 0 … 1, of which a share takes a number of each class, rounded at random.

    Rounded to the nearest, it would be none, or all, of many small classes of equal size.
    """
    positions = np.empty(len(classes))
    for name, members in members_of_classes(classes):
        random = generator(seed, SUBSET, name + 1)  # one for each class: others do not change its images
        positions[random.permutation(members)] = (np.arange(len(members)) + random.random()) / len(members)
    return positions


def _per_class(labels: SplitLabels, positions: NDArray[np.float64], number: int) -> NDArray[np.bool_]:
    """Return (n,) which images to take, so that each class has `number` of them, where it has so many."""
    chosen = np.zeros(len(positions), dtype=bool)
    if isinstance(labels, SparseLabels):
        _add_by_rarity(labels, positions, number, chosen)
        return chosen
    for name, members in members_of_classes(labels):
        if name >= 0:
            chosen[members[np.argsort(positions[members])[:number]]] = True
    return chosen


def _add_by_rarity(
    labels: SparseLabels, positions: NDArray[np.float64], number: int, chosen: NDArray[np.bool_]
) -> None:
    """Mark images as chosen until each class has one, then until it has two, up to `number`: so they are nested."""
    available, taken = labels.counts(), np.zeros(labels.classes, np.int64)
    by_rarity = np.argsort(available, kind="stable")
    images, starts = _images_by_position(labels, positions), np.append(0, np.cumsum(available))
    following = starts[:-1].copy()  # where the next image of each class is
    for level in range(1, min(number, int(available.max(initial=0))) + 1):
        for name in by_rarity[(taken < level)[by_rarity] & (available >= level)[by_rarity]].tolist():
            if taken[name] >= level:  # an image of a rarer class has this label, too
                continue
            while chosen[images[following[name]]]:
                following[name] += 1
            image = images[following[name]]
            chosen[image] = True
            taken[labels[image]] += 1


def _images_by_position(labels: SparseLabels, positions: NDArray[np.float64]) -> Ints:
    """Return the images of the first class in the order of their positions, then those of the second, and so on."""
    by_position = np.argsort(positions, kind="stable")
    rank = np.empty_like(by_position)
    rank[by_position] = np.arange(len(positions))
    keys = labels.numbers.astype(np.int64) * len(positions)
    keys += np.repeat(rank, np.diff(labels.offsets))
    keys.sort()  # in place, as one number each: millions of labels take little memory
    keys %= max(len(positions), 1)
    return by_position[keys]
