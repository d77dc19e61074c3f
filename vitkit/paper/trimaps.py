"""Trimaps, as of Oxford-IIIT Pets: which pixels show the object, and how much of a map of patches falls on them.

A trimap is a PNG of the image's size whose pixels are 1 (object), 2 (background) or 3 (border). Border pixels belong to
neither side and are left out.

Shapes: B images, h x w patch grid.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional

from vitkit.data.decode import only_decode_errors
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.resize import Size
from vitkit.data.sources.dataset import Split, StoredImage
from vitkit.data.sources.open import open_data
from vitkit.data.transforms import fit_to_size
from vitkit.errors import ConfigError, DecodeError
from vitkit.paper.datasets import Datasets

OBJECT, BACKGROUND, BORDER = 1, 2, 3
IMAGES, TRIMAPS = "images", "annotations/trimaps"  # folders of Pets as its authors publish it

Maps = NDArray[np.floating]  # (B, h, w), or (h, w) of one image


@dataclass(frozen=True, kw_only=True)
class OutlinedImage:
    """An image with its trimap, both as they are stored."""

    name: str
    image: StoredImage
    trimap: StoredImage


def outlined_pets(datasets: Datasets, count: int, start: int = 0) -> list[OutlinedImage]:
    """Return images of Pets that have a trimap: `count` of a fixed random order, from the `start`-th on.

    The data set is as its authors publish it, with images/NAME.jpg and annotations/trimaps/NAME.png, or in any form
    that vitkit opens, with the trimaps beside it. Images without a trimap are left out.
    """
    root = Path(datasets.find("pets", as_published=True))
    outlines = root if (root / TRIMAPS).is_dir() else Path(datasets.find("pets-trimaps"))
    trimaps = _by_name(outlines / TRIMAPS if (outlines / TRIMAPS).is_dir() else outlines)
    images = _by_name(root / IMAGES if (root / IMAGES).is_dir() else root)
    shared = sorted(images.keys() & trimaps.keys())
    if not shared:
        raise ConfigError(
            f"no image of {root} has a trimap in {outlines}",
            expected="a trimap NAME.png for an image NAME.jpg",
            found=f"trimaps such as {min(trimaps)}, images such as {min(images)}",
        )
    order = np.random.default_rng(0).permutation(len(shared))[start : start + count]
    return [
        OutlinedImage(name=name, image=_read(images[name]), trimap=_read(trimaps[name]))
        for name in (shared[index] for index in order)
    ]


def _by_name(path: Path) -> dict[str, tuple[Split, int]]:
    """Return every image of a data set, in whichever split, by the stem of its file name."""
    return dict(_named(path))


def _named(path: Path) -> Iterator[tuple[str, tuple[Split, int]]]:
    for split in open_data(path).splits.values():
        for index, key in enumerate(split.keys):
            yield PurePosixPath(key).stem, (split, index)


def _read(found: tuple[Split, int]) -> StoredImage:
    split, index = found
    return split.read(index)


def read_trimap(content: StoredImage) -> NDArray[np.uint8]:
    """Return the pixels of a trimap, (height, width): a PNG's grey levels or palette indices, never its colours."""
    if isinstance(content, np.ndarray):
        pixels = content.squeeze(-1) if content.ndim == 3 else content
    else:
        with only_decode_errors(), Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            if image.mode not in ("L", "P"):
                raise DecodeError(f"a trimap has grey levels 1, 2 and 3, and this PNG is {image.mode}")
            pixels = np.asarray(image)
    unknown = sorted({*np.unique(pixels).tolist()} - {OBJECT, BACKGROUND, BORDER})
    if unknown:
        raise DecodeError(
            f"a trimap has the values 1 (object), 2 (background) and 3 (border), and this one {unknown[0]}"
        )
    return pixels.astype(np.uint8)


def patch_shares(trimap: NDArray[np.uint8], image: Size, grid: Size, preprocessing: Preprocessing) -> tuple[Maps, Maps]:
    """Return the share of object and of background in each patch of the model's input: (h, w) each.

    The trimap goes through the geometry of the image: resized, and the centre cut out. What is padded is neither.
    """
    sides = torch.from_numpy(np.stack([trimap == OBJECT, trimap == BACKGROUND])).float() * 255
    plain = replace(preprocessing, interpolation="bilinear", mean=(0.0,), std=(1.0,))
    framed = fit_to_size(sides, image, plain) / 255
    patches = functional.adaptive_avg_pool2d(framed, grid).clamp(0, 1).numpy()
    return patches[0], patches[1]


def shares_inside(maps: Maps, inside: Maps, outside: Maps) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of each map's mass that lies on the object, and the object's share of the area: (B,) each.

    Where an image has neither object nor background, both are NaN.
    """
    mass_in, mass_out = ((maps * side).sum(axis=(1, 2), dtype=np.float64) for side in (inside, outside))
    area_in, area_out = (side.sum(axis=(1, 2), dtype=np.float64) for side in (inside, outside))
    with np.errstate(invalid="ignore", divide="ignore"):
        return mass_in / (mass_in + mass_out), area_in / (area_in + area_out)
