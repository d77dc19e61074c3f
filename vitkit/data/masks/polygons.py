"""Polygons → masks, with COCO's meaning: [x, y, x, y, …] in pixels, drawn by pycocotools.

A polygon is closed without repeating its first point. Several polygons are one area: where they overlap counts once.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.masks.dense_extra import coco_mask
from vitkit.errors import DecodeError

_FEWEST = 6  # numbers: three points
_OUTSIDE = 2  # times the side of its image that a coordinate may be away from it


def rasterise(polygons: Sequence[Any], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the union of polygons as a mask of this (height, width); a DecodeError says which polygon is malformed."""
    height, width = size
    checked = [_checked(polygon, f"its polygon {number}", size) for number, polygon in enumerate(polygons, 1)]
    if not checked:
        return np.zeros(size, bool)
    coco = coco_mask()
    mask: NDArray[np.bool_] = coco.decode(coco.merge(coco.frPyObjects(checked, height, width))).astype(bool)
    return mask


def _checked(polygon: Any, name: str, size: tuple[int, int]) -> list[float]:
    if not isinstance(polygon, list | tuple) or not all(type(value) in (int, float) for value in polygon):
        raise DecodeError(f"{name} is not a list of numbers [x, y, x, y, …]")
    if len(polygon) % 2:
        raise DecodeError(f"{name} has {len(polygon)} numbers: one coordinate is without the other")
    if len(polygon) < _FEWEST:  # pycocotools would take four numbers for a box
        raise DecodeError(f"{name} is not closed: it has {len(polygon) // 2} points, and an area needs three")
    height, width = size
    for value, side in zip(polygon, (width, height) * (len(polygon) // 2), strict=True):
        if not math.isfinite(value) or not -_OUTSIDE * side <= value <= (1 + _OUTSIDE) * side:
            raise DecodeError(f"{name} has the coordinate {value}, far outside its image of {height} x {width} pixels")
    return [float(value) for value in polygon]
