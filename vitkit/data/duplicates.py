"""Pictures that are there twice: identical ones by their pixels, nearly identical ones by a small fingerprint.

A fingerprint is 64 comparisons of neighbouring grey levels (a difference hash). Two pictures are near when at most 3 of
them differ and the 16 x 16 thumbnails agree: a re-saved, resized or slightly brightened copy, not a similar scene.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from vitkit.data.facts import THUMBNAIL, Facts

HASH_DISTANCE = 3  # bits; with four bands of 16 bits, such a pair shares at least one band whole
GREY_DISTANCE = 4.0  # mean over the thumbnail, after brightness is levelled
CANDIDATES = 64  # looked at closely for a picture; among video frames thousands would do
FLAT = 8.0  # deviation under which a picture has too little in it to be told from another


def identical(facts: Sequence[Facts]) -> list[list[int]]:
    """Groups of two or more with the same pixels."""
    return _groups((facts[index].pixels, index) for index in range(len(facts)) if facts[index].pixels)


def near(facts: Sequence[Facts], splits: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs from two splits that are nearly the same; one for each picture, the identical left out."""
    # one of each kind of picture per split: a thousand copies are no thousand finds
    chosen = list(
        {
            (one.pixels, split): index
            for index, (one, split) in enumerate(zip(facts, splits, strict=True))
            if one.thumbnail
        }.values()
    )
    if len(set(splits)) < 2 or not chosen:
        return []
    levels = np.frombuffer(bytes.fromhex("".join(facts[index].thumbnail for index in chosen)), np.uint8)
    thumbnails = levels.astype(np.float32).reshape(-1, THUMBNAIL, THUMBNAIL)
    textured = thumbnails.std(axis=(1, 2)) >= FLAT
    search = _Search(
        hashes=fingerprints(thumbnails),
        level=thumbnails - thumbnails.mean(axis=(1, 2), keepdims=True),
        split=np.unique([splits[index] for index in chosen], return_inverse=True)[1],
        pixels=np.unique([facts[index].pixels for index in chosen], return_inverse=True)[1],
    )
    for band in range(4):
        keys = (search.hashes >> np.uint64(16 * band)) & np.uint64(0xFFFF)
        for group in _groups((int(key), place) for place, key in enumerate(keys) if textured[place]):
            search.pair_up(np.array(group))
    return sorted((chosen[one], chosen[other]) for one, other in search.found.items())


@dataclass
class _Search:
    hashes: np.ndarray  # (n,) fingerprints
    level: np.ndarray  # (n, 16, 16) grey levels about their mean
    split: np.ndarray  # (n,) numbers of the splits
    pixels: np.ndarray  # (n,) numbers of identical pictures
    found: dict[int, int] = field(default_factory=dict)

    def pair_up(self, group: np.ndarray) -> None:
        """Within pictures that share a band: each with the likest of the later ones in another split."""
        for place, one in enumerate(group[:-1].tolist()):
            if one in self.found:
                continue
            others = group[place + 1 :]
            others = others[(self.split[others] != self.split[one]) & (self.pixels[others] != self.pixels[one])]
            apart = np.bitwise_count(self.hashes[others] ^ self.hashes[one])
            others = others[apart <= HASH_DISTANCE][:CANDIDATES]
            if len(others):
                distance = np.abs(self.level[others] - self.level[one]).mean(axis=(1, 2))
                if distance.min() <= GREY_DISTANCE:
                    self.found[one] = int(others[distance.argmin()])


def fingerprints(thumbnails: np.ndarray) -> np.ndarray:
    """(n, 16, 16) grey levels → (n,) uint64: is each of 8 x 8 cells darker than its right neighbour?"""
    cells = thumbnails.reshape(-1, 8, 2, 16).mean(axis=2)  # (n, 8, 16): rows halved, columns kept
    steps = cells[:, :, 1::2] > cells[:, :, 0::2]  # (n, 8, 8)
    weights = np.uint64(1) << np.arange(64, dtype=np.uint64)
    return (steps.reshape(len(steps), 64) * weights).sum(axis=1, dtype=np.uint64)


def _groups(keyed: Iterable[tuple[object, int]]) -> list[list[int]]:
    members: dict[object, list[int]] = defaultdict(list)
    for key, index in keyed:
        members[key].append(index)
    return [group for group in members.values() if len(group) > 1]
