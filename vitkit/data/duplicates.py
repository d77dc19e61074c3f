"""Copies of images: identical ones by the hash of their bytes, near duplicates by their thumbnails.

Two images are near duplicates when their 16 x 16 grey thumbnails, or one and the mirror image of the other, have a
correlation of at least 0.996. That finds copies that were re-saved in another format or at a JPEG quality of 30 and
above, resized by a factor of 1/4 to 4 with or without their aspect ratio, turned to grey, mirrored from left to right,
made a little brighter or darker without clipping, or several of these at once, if the copy has 64 pixels a side or
more. It does not find crops, rotations, or images with too little texture to compare (a standard deviation under 8 grey
levels).

Candidates share the signs of 27 Walsh coefficients of low frequency, but for the least certain ones. Everything is
computed in integers, or in floats that represent them exactly: the result is the same on every machine.

Shapes: n images, m pairs, K = 27 coefficients.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from vitkit.data.fingerprint import FLAT, SIDE
from vitkit.data.image_info import ImageInfo

CORRELATION = 0.996
FREQUENCIES = 6  # highest sum of the horizontal and vertical sequency of a coefficient: 27 of them
UNCERTAIN = 4  # coefficients nearest to zero, whose signs a copy may not share
LEAD = 1.01 * (2 * (1 - CORRELATION)) ** 0.5  # how far normalised coefficients of two near duplicates can be apart
CANDIDATES = 64  # compared with each image for each key; among video frames there would be thousands
VERIFIED = 1 << 15  # pairs whose thumbnails are compared at a time
PIXELS = SIDE * SIDE


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of near duplicates, each once, the first index the smaller one."""

    first: NDArray[np.int64]  # (m,)
    second: NDArray[np.int64]  # (m,)
    correlation: NDArray[np.float64]  # (m,)

    def __len__(self) -> int:
        return len(self.first)


def identical_images(infos: Sequence[ImageInfo]) -> list[list[int]]:
    """Return groups of two or more images with the same pixels, in any lossless format."""
    return equal_keys((info.pixels, index) for index, info in enumerate(infos) if info.pixels)


def equal_keys(keyed: Iterable[tuple[Hashable, int]]) -> list[list[int]]:
    """Return groups of two or more indices with equal keys."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for key, index in keyed:
        members[key].append(index)
    return [group for group in members.values() if len(group) > 1]


def near_duplicates(thumbnails: NDArray[np.uint8]) -> Pairs:
    """Return the pairs of near duplicates among thumbnails (n, 16, 16); identical ones are pairs, too."""
    features = _Features.of(thumbnails)
    found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
    for mirrored in (False, True):
        for count in range(UNCERTAIN + 1):
            for flipped in combinations(range(UNCERTAIN), count):
                keys = features.keys ^ np.bitwise_or.reduce(features.uncertain[:, list(flipped)], axis=1, initial=0)
                keys = keys ^ _MIRROR if mirrored else keys
                limit = CANDIDATES if not flipped else CANDIDATES // 4
                found += features.verified(keys, mirrored, limit)
    if not found:
        none = np.empty(0, np.int64)
        return Pairs(none, none, np.empty(0))
    first, second, correlation = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((-correlation, second, first))
    first, second, correlation = first[order], second[order], correlation[order]
    new = np.ones(len(first), bool)
    new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    return Pairs(features.rows[first[new]], features.rows[second[new]], correlation[new])


def _walsh() -> tuple[NDArray[np.float32], np.int64]:
    """Return (256, K) Walsh functions of low sequency, -1 or 1, and the bits of those that a mirror image negates."""
    table = np.ones((1, 1), int)
    while len(table) < SIDE:
        table = np.block([[table, table], [table, -table]])
    table = table[np.argsort((np.diff(table, axis=1) != 0).sum(axis=1), kind="stable")]  # by sign changes
    chosen = [(i, j) for i in range(SIDE) for j in range(SIDE) if 0 < i + j <= FREQUENCIES]
    functions = np.stack([np.outer(table[i], table[j]).ravel() for i, j in chosen], axis=1)
    mirror = sum(1 << bit for bit, (_, j) in enumerate(chosen) if j % 2)
    return functions.astype(np.float32), np.int64(mirror)


_FUNCTIONS, _MIRROR = _walsh()
_LEADING = 6  # the function of one change from top to bottom, which mirroring leaves alone


@dataclass(frozen=True, eq=False)
class _Features:
    """Features of the textured thumbnails for the search, sorted by key and then by the leading coefficient."""

    rows: NDArray[np.int64]  # (n,) of the thumbnails
    levels: NDArray[np.uint8]  # (n, 256)
    keys: NDArray[np.int64]  # (n,) signs of the coefficients, a bit each
    uncertain: NDArray[np.int64]  # (n, UNCERTAIN) the bits of those nearest to zero
    lead: NDArray[np.float64]  # (n,) the leading coefficient of the normalised thumbnail, -1 to 1
    sums: NDArray[np.int64]  # (n,) of the levels
    spread: NDArray[np.int64]  # (n,) 256 · sum of squares - square of the sum
    sorted_by: NDArray[np.float64]  # (n,) key and lead in one number: 27 bits and a fraction

    @classmethod
    def of(cls, thumbnails: NDArray[np.uint8]) -> "_Features":
        levels = thumbnails.reshape(len(thumbnails), PIXELS)
        count = len(levels)
        sums, squares = np.empty(count, np.int64), np.empty(count, np.int64)
        keys, uncertain, lead = np.empty(count, np.int64), np.empty((count, UNCERTAIN), np.int64), np.empty(count)
        for first in range(0, count, VERIFIED):
            some = slice(first, first + VERIFIED)
            values = levels[some].astype(np.float32)  # sums of 256 products of bytes are exact in float32
            sums[some] = values.sum(axis=1)
            squares[some] = np.einsum("ij,ij->i", values, values)
            coefficients = values @ _FUNCTIONS
            keys[some] = (coefficients > 0) @ (1 << np.arange(_FUNCTIONS.shape[1]))
            # the magnitude decides, among equals the first: the same on every machine
            nearest = np.argsort(np.abs(coefficients), axis=1, kind="stable")[:, :UNCERTAIN]
            uncertain[some] = 1 << nearest
            lead[some] = coefficients[:, _LEADING]
        spread = PIXELS * squares - sums**2
        textured = np.flatnonzero(spread >= (FLAT * PIXELS) ** 2)
        lead = lead[textured] / np.sqrt(spread[textured])
        sorted_by = 4.0 * keys[textured] + lead
        order = np.lexsort((textured, sorted_by))
        rows = textured[order]
        return cls(
            rows, levels[rows], keys[rows], uncertain[rows], lead[order], sums[rows], spread[rows], sorted_by[order]
        )

    def verified(
        self, keys: NDArray[np.int64], mirrored: bool, limit: int
    ) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
        """Return the pairs of each image with those near duplicates that have exactly its key in `keys`."""
        centre = 4.0 * keys + self.lead
        starts, stops = (np.searchsorted(self.sorted_by, centre + side * LEAD) for side in (-1, 1))
        middles = np.searchsorted(self.sorted_by, centre)
        starts, stops = np.maximum(starts, middles - limit // 2), np.minimum(stops, middles + limit // 2)
        counts = np.maximum(stops - starts, 0)
        candidates = np.flatnonzero(counts)
        found = []
        for block in _blocks(counts[candidates]):
            some = candidates[block]
            first = np.repeat(some, counts[some])
            within = np.arange(len(first)) - np.repeat(np.cumsum(counts[some]) - counts[some], counts[some])
            second = np.repeat(starts[some], counts[some]) + within
            distinct = first != second
            first, second = first[distinct], second[distinct]
            correlation = self._correlation(first, second, mirrored)
            near = correlation >= CORRELATION
            first, second = first[near], second[near]
            low = np.where(self.rows[first] < self.rows[second], first, second)
            found.append((low, np.where(low == first, second, first), correlation[near]))
        return found

    def _correlation(self, first: NDArray[np.int64], second: NDArray[np.int64], mirrored: bool) -> NDArray[np.float64]:
        one, other = self.levels[first].astype(np.float32), self.levels[second].astype(np.float32)
        if mirrored:
            other = other.reshape(-1, SIDE, SIDE)[:, :, ::-1].reshape(-1, PIXELS)
        products = np.einsum("ij,ij->i", one, other).astype(np.float64)
        covariance = PIXELS * products - (self.sums[first] * self.sums[second]).astype(np.float64)
        return covariance / np.sqrt(self.spread[first].astype(np.float64) * self.spread[second])


def _blocks(counts: NDArray[np.int64]) -> Iterable[slice]:
    """Yield slices of the counts that add up to about VERIFIED pairs each."""
    totals = np.cumsum(counts)
    first = 0
    while first < len(counts):
        before = totals[first - 1] if first else 0
        last = max(int(np.searchsorted(totals, before + VERIFIED, side="right")), first + 1)
        yield slice(first, last)
        first = last
