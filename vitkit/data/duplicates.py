"""Pictures that are there twice: identical ones by their pixels, nearly identical ones by a small fingerprint.

A fingerprint is 64 comparisons of neighbouring grey levels (a difference hash). Two pictures are near when at most 3 of
them differ and the 16 x 16 thumbnails agree: a re-saved, resized or slightly brightened copy, not a similar scene.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from vitkit.data.facts import THUMBNAIL, Facts

HASH_DISTANCE = 3  # bits; with four bands of 16 bits, such a pair shares at least one band whole
GREY_DISTANCE = 4.0  # mean over the thumbnail, after brightness is levelled
FLAT = 8.0  # deviation under which a picture has too little in it to be told from another


def identical(facts: Sequence[Facts]) -> list[list[int]]:
    """Groups of two or more with the same pixels."""
    return _groups((facts[index].pixels, index) for index in range(len(facts)) if facts[index].pixels)


def near(facts: Sequence[Facts]) -> list[tuple[int, int]]:
    """Pairs that are nearly the same, identical ones left out."""
    chosen = [index for index, one in enumerate(facts) if one.thumbnail]
    if not chosen:
        return []
    levels = np.frombuffer(bytes.fromhex("".join(facts[index].thumbnail for index in chosen)), np.uint8)
    thumbnails = levels.astype(np.float32).reshape(-1, THUMBNAIL, THUMBNAIL)
    level = thumbnails - thumbnails.mean(axis=(1, 2), keepdims=True)
    textured = thumbnails.std(axis=(1, 2)) >= FLAT
    hashes = fingerprints(thumbnails)
    pairs: set[tuple[int, int]] = set()
    for band in range(4):
        keys = (hashes >> np.uint64(16 * band)) & np.uint64(0xFFFF)
        for group in _groups((int(key), place) for place, key in enumerate(keys) if textured[place]):
            pairs |= _close_pairs(np.array(group), hashes, level)
    found = [(chosen[one], chosen[other]) for one, other in sorted(pairs)]
    return [(one, other) for one, other in found if facts[one].pixels != facts[other].pixels]


def fingerprints(thumbnails: np.ndarray) -> np.ndarray:
    """(n, 16, 16) grey levels → (n,) uint64: is each of 8 x 8 cells darker than its right neighbour?"""
    cells = thumbnails.reshape(-1, 8, 2, 16).mean(axis=2)                # (n, 8, 16): rows halved, columns kept
    steps = cells[:, :, 1::2] > cells[:, :, 0::2]                        # (n, 8, 8)
    weights = np.uint64(1) << np.arange(64, dtype=np.uint64)
    return (steps.reshape(len(steps), 64) * weights).sum(axis=1, dtype=np.uint64)


def _close_pairs(group: np.ndarray, hashes: np.ndarray, level: np.ndarray) -> set[tuple[int, int]]:
    """Within a group that shares a band: all against all, a row at a time."""
    pairs = set()
    for place, one in enumerate(group[:-1]):
        others = group[place + 1:]
        distance = np.bitwise_count(hashes[others] ^ hashes[one])
        others = others[distance <= HASH_DISTANCE]
        apart = np.abs(level[others] - level[one]).mean(axis=(1, 2))
        pairs |= {(int(one), int(other)) for other in others[apart <= GREY_DISTANCE]}
    return pairs


def _groups(keyed: Iterable[tuple[object, int]]) -> list[list[int]]:
    members: dict[object, list[int]] = defaultdict(list)
    for key, index in keyed:
        members[key].append(index)
    return [group for group in members.values() if len(group) > 1]
