"""Hold out a share of the images, each class in proportion and each group of images as a whole; seeded."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vitkit.data.sparse_labels import SparseLabels, SplitLabels
from vitkit.data.stateless_rng import generator
from vitkit.errors import ConfigError

SPLITTING = 0x5711  # sets these draws apart from the orders of epochs, which have the same seed


def stratified(
    labels: SplitLabels, share: float, seed: int = 0, groups: NDArray[np.int64] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted indices of (the rest, the share held out), each class in proportion.

    labels are (n,) class indices, -1 for unlabelled, or SparseLabels; there, an image counts for the rarest label it
    has. A class of two or more images is on both sides; one of a single image stays in the rest. With `groups` (n,),
    images of equal numbers stay together: a class whose images are all in one group stays in the rest, and the others
    are held out as near to their proportion as whole groups allow. Groups of single images change nothing.
    """
    if not 0 < share < 1:
        raise ConfigError(f"a share of {share} cannot be held out", expected="above 0, under 1")
    classes = strata(labels)
    if groups is not None and len(np.unique(groups)) < len(groups):
        held_out = _hold_out_groups(classes, share, seed, groups)
    else:
        held_out = _hold_out_images(classes, share, seed)
    rest = np.setdiff1d(np.arange(len(labels)), held_out, assume_unique=True)
    return rest, held_out


def strata(labels: SplitLabels) -> NDArray[np.int64]:
    """Return (n,) the class of each image by which it is stratified: its own, or the rarest of several."""
    return labels.rarest() if isinstance(labels, SparseLabels) else labels


def members_of_classes(classes: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each class number of (n,) in ascending order with the images that have it, in their order."""
    order = np.argsort(classes, kind="stable")  # a comparison for each class would be images x classes
    names, starts = np.unique(classes[order], return_index=True)
    yield from zip(names.tolist(), np.split(order, starts)[1:], strict=True)  # nothing is before the first start


def _count(share: float, images: int) -> int:
    return min(max(round(share * images), 1), images - 1)


def _shuffled(members: np.ndarray, seed: int, stratum: int) -> np.ndarray:
    # a generator for each class: the size of another class does not change which images are chosen here
    return generator(seed, SPLITTING, int(stratum) + 1).permutation(members)


def _hold_out_images(classes: np.ndarray, share: float, seed: int) -> NDArray[np.int64]:
    chosen = [np.empty(0, np.int64)]
    for stratum, members in members_of_classes(classes):
        chosen.append(_shuffled(members, seed, stratum)[: _count(share, len(members))])
    return np.sort(np.concatenate(chosen))


def _hold_out_groups(classes: np.ndarray, share: float, seed: int, groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the members of the groups to hold out.

    Each group is drawn with its rarest class, by its first image, in the order in which that image alone would be
    drawn. It is taken if that brings the classes that it has nearer to their share and leaves some images of each.
    """
    names, class_of = np.unique(classes, return_inverse=True)
    _, first, group_of = np.unique(groups, return_index=True, return_inverse=True)
    images = np.bincount(class_of)
    missing = np.array([_count(share, int(count)) for count in images])  # still to be held out
    left = images.copy()  # in the rest
    pairs, sizes = np.unique(group_of * len(names) + class_of, return_counts=True)  # a group and a class that it has
    pair_group, pair_class = np.divmod(pairs, len(names))
    starts = np.searchsorted(pair_group, np.arange(len(first) + 1))
    by_rarity = np.argsort(-images[pair_class], kind="stable")
    rarest = np.empty(len(first), np.int64)
    rarest[pair_group[by_rarity]] = pair_class[by_rarity]  # of several values for a group, the last one stays
    taken = np.zeros(len(first), bool)

    def classes_and_sizes(group: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        some = slice(starts[group], starts[group + 1])
        return pair_class[some], sizes[some]

    def leaves_some(group: int) -> bool:
        own, counts = classes_and_sizes(group)
        return bool((counts < left[own]).all())

    def take(group: int) -> None:
        own, counts = classes_and_sizes(group)
        missing[own] -= counts
        left[own] -= counts
        taken[group] = True

    by_stratum = dict(members_of_classes(rarest))  # class → its groups
    for stratum in np.argsort(images, kind="stable").tolist():
        members = first[by_stratum.get(stratum, np.empty(0, np.int64))]
        drawn = group_of[_shuffled(np.sort(members), seed, int(names[stratum]))].tolist()
        for group in drawn:
            if missing[stratum] <= 0:
                break
            own, counts = classes_and_sizes(group)
            nearer = np.abs(missing[own] - counts).sum() < np.abs(missing[own]).sum()
            if nearer and leaves_some(group):
                take(group)
        if missing[stratum] == _count(share, int(images[stratum])) > 0:  # every group is too large: the smallest then
            possible = [group for group in drawn if leaves_some(group)]
            if possible:
                take(min(possible, key=lambda group: int(classes_and_sizes(group)[1].sum())))
    return np.flatnonzero(taken[group_of])
