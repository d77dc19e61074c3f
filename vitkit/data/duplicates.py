"""Duplicate images: identical ones by the hash of their pixels, near duplicates by a difference hash.

A difference hash is 64 comparisons of neighbouring grey levels. Two images are near duplicates when at most 3 of them
differ and the 16 x 16 thumbnails agree: a re-saved, resized or slightly brightened copy, not a similar scene.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from vitkit.data.image_info import THUMBNAIL, ImageInfo

HASH_DISTANCE = 3  # bits; with four bands of 16 bits, such a pair has at least one band in common
GREY_DISTANCE = 4.0  # mean over the thumbnail, after subtracting the mean brightness
CANDIDATES = 64  # compared for each image; among video frames there would be thousands
FLAT = 8.0  # standard deviation under which an image has too little texture to compare


def identical_images(infos: Sequence[ImageInfo]) -> list[list[int]]:
    """Return groups of two or more images with the same pixels."""
    return _groups((infos[index].pixels, index) for index in range(len(infos)) if infos[index].pixels)


def near_duplicates(infos: Sequence[ImageInfo], splits: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs of near duplicates from two splits, one pair for each image; identical images are not included."""
    # one image of each set of identical ones per split: a thousand copies are one duplicate
    chosen = list(
        {
            (info.pixels, split): index
            for index, (info, split) in enumerate(zip(infos, splits, strict=True))
            if info.thumbnail
        }.values()
    )
    if len(set(splits)) < 2 or not chosen:
        return []
    levels = np.frombuffer(bytes.fromhex("".join(infos[index].thumbnail for index in chosen)), np.uint8)
    thumbnails = levels.astype(np.float32).reshape(-1, THUMBNAIL, THUMBNAIL)
    textured = thumbnails.std(axis=(1, 2)) >= FLAT
    search = _Search(
        hashes=difference_hashes(thumbnails),
        levels=thumbnails - thumbnails.mean(axis=(1, 2), keepdims=True),
        split=np.unique([splits[index] for index in chosen], return_inverse=True)[1],
        pixels=np.unique([infos[index].pixels for index in chosen], return_inverse=True)[1],
    )
    for band in range(4):
        keys = (search.hashes >> np.uint64(16 * band)) & np.uint64(0xFFFF)
        for group in _groups((int(key), row) for row, key in enumerate(keys) if textured[row]):
            search.pair_up(np.array(group))
    return sorted((chosen[one], chosen[other]) for one, other in search.pairs.items())


@dataclass
class _Search:
    hashes: np.ndarray  # (n,) difference hashes
    levels: np.ndarray  # (n, 16, 16) grey levels about their mean
    split: np.ndarray  # (n,) number of the split
    pixels: np.ndarray  # (n,) equal for identical images
    pairs: dict[int, int] = field(default_factory=dict)

    def pair_up(self, group: np.ndarray) -> None:
        """Pair each image of a group that shares a band with the most similar later one in another split."""
        for position, one in enumerate(group[:-1].tolist()):
            if one in self.pairs:
                continue
            others = group[position + 1 :]
            others = others[(self.split[others] != self.split[one]) & (self.pixels[others] != self.pixels[one])]
            bits = np.bitwise_count(self.hashes[others] ^ self.hashes[one])
            others = others[bits <= HASH_DISTANCE][:CANDIDATES]
            if len(others):
                distance = np.abs(self.levels[others] - self.levels[one]).mean(axis=(1, 2))
                if distance.min() <= GREY_DISTANCE:
                    self.pairs[one] = int(others[distance.argmin()])


def difference_hashes(thumbnails: np.ndarray) -> np.ndarray:
    """Hash (n, 16, 16) grey levels → (n,) uint64: is each of 8 x 8 cells darker than its right neighbour?"""
    cells = thumbnails.reshape(-1, 8, 2, 16).mean(axis=2)  # (n, 8, 16): rows halved, columns kept
    steps = cells[:, :, 1::2] > cells[:, :, 0::2]  # (n, 8, 8)
    weights = np.uint64(1) << np.arange(64, dtype=np.uint64)
    return (steps.reshape(len(steps), 64) * weights).sum(axis=1, dtype=np.uint64)


def _groups(keyed: Iterable[tuple[object, int]]) -> list[list[int]]:
    members: dict[object, list[int]] = defaultdict(list)
    for key, index in keyed:
        members[key].append(index)
    return [group for group in members.values() if len(group) > 1]
