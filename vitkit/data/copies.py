"""Copies among the images of a source, joined into groups; chains of near duplicates have a limit."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.data.duplicates import Pairs, near_duplicates
from vitkit.data.fingerprint import Fingerprints
from vitkit.data.sources.dataset import Split
from vitkit.data.stratified import strata

LARGEST_CHAIN = 10_000  # images in a chain of near duplicates, and at most half of a class
SMALL_CHAIN = 8  # images that a chain may have in a class of any size


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies among all images, by their index in the order of the fingerprints."""

    content: NDArray[np.int64]  # (n,) the first image with the same bytes
    near: Pairs  # between first images

    @classmethod
    def none(cls, count: int) -> "Copies":
        nothing = np.empty(0, np.int64)
        return cls(np.arange(count), Pairs(nothing, nothing, np.empty(0)))

    @classmethod
    def of(cls, prints: Fingerprints) -> "Copies":
        content = np.arange(len(prints))
        readable = np.flatnonzero(prints.readable)
        if not len(readable):
            return cls.none(len(prints))
        words = np.ascontiguousarray(prints.contents[readable]).view("V16")[:, 0]
        _, first, inverse = np.unique(words, return_index=True, return_inverse=True)
        content[readable] = readable[first[inverse]]
        unique = np.flatnonzero((content == np.arange(len(content))) & prints.decoded)
        pairs = near_duplicates(prints.thumbnails[unique])
        return cls(content, Pairs(unique[pairs.first], unique[pairs.second], pairs.correlation))


def group_copies(train: Split, copies: Copies) -> tuple[NDArray[np.int64] | None, int]:
    """Return the groups of the training images, None if each is alone, and how many near duplicates are apart."""
    count, apart = len(train), 0
    own = groups = np.arange(count)
    if train.groups is not None:
        _, first, inverse = np.unique(train.groups, return_index=True, return_inverse=True)
        groups = first[inverse]
    inside = copies.near.second < count
    if inside.any() or (copies.content[:count] != own).any():
        union = _UnionFind(count)
        union.join_all(groups)
        union.join_all(copies.content[:count])
        apart = union.join_pairs(
            copies.near.first[inside], copies.near.second[inside], copies.near.correlation[inside], strata(train.labels)
        )
        groups = union.roots()
    return (groups if (groups != own).any() else None), apart


class _UnionFind:
    """Union-find; the root of a group is its first image."""

    def __init__(self, count: int):
        self.parent = list(range(count))

    def find(self, image: int) -> int:
        parent = self.parent
        while parent[image] != image:
            parent[image] = parent[parent[image]]
            image = parent[image]
        return image

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.find(one), self.find(other)))
        self.parent[high] = low

    def join_all(self, first: NDArray[np.int64]) -> None:
        """Join each image with the one that `first` (n,) names."""
        for image in np.flatnonzero(first != np.arange(len(first))).tolist():
            self.join(image, int(first[image]))

    def join_pairs(
        self,
        first: NDArray[np.int64],
        second: NDArray[np.int64],
        correlation: NDArray[np.float64],
        classes: NDArray[np.int64],
    ) -> int:
        """Join pairs, the most similar first, unless that makes a chain too long; return how many images that leaves.

        A pair of single images is always joined: a limit is for chains, in which neighbours are alike but the ends are
        not. So that none takes up a class, a group has at most half of the images of each, or SMALL_CHAIN.
        """
        number = Counter(classes.tolist())
        limit = {label: min(max(images // 2, SMALL_CHAIN), LARGEST_CHAIN) for label, images in number.items()}
        involved = np.unique(np.concatenate([first, second])).tolist()
        roots = self.roots()
        affected = np.isin(roots, np.unique(roots[involved])) if involved else np.zeros(0, bool)
        content: dict[int, Counter[int]] = {}
        for image in np.flatnonzero(affected).tolist():
            content.setdefault(int(roots[image]), Counter())[int(classes[image])] += 1
        apart: set[int] = set()
        for row in np.lexsort((second, first, -correlation)).tolist():
            one, other = self.find(int(first[row])), self.find(int(second[row]))
            if one == other:
                continue
            joined = content[one] + content[other]
            if joined.total() > 2 and any(images > limit[label] for label, images in joined.items()):
                apart.update((int(first[row]), int(second[row])))
                continue
            self.join(one, other)
            content[min(one, other)] = joined
        return len(apart)

    def roots(self) -> NDArray[np.int64]:
        return np.fromiter(map(self.find, range(len(self.parent))), np.int64, len(self.parent))
