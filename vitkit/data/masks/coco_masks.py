"""Masks from COCO's annotations: polygons and RLE, drawn in the order of the file, each over those before it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.masks.file_masks import mask_error
from vitkit.data.masks.polygons import rasterise
from vitkit.data.masks.rle import decode_rle
from vitkit.data.sources.dataset import PackedStrings
from vitkit.errors import DecodeError
from vitkit.text import printable

KEPT = ("id", "category_id", "segmentation")  # of an annotation


@dataclass(frozen=True, eq=False)
class CocoMasks:
    """The masks of the images of one file; pixels without an annotation are class 0."""

    origin: str  # the JSON file
    images: PackedStrings  # "image 139 (000000000139.jpg)"
    sizes: NDArray[np.int64]  # (n, 2) the height and width that the file states, 0 where it does not
    annotations: PackedStrings  # those of each image, as JSON
    classes: Mapping[int, int]  # category id → class

    def mask_name(self, row: int) -> str:
        return f"{self.origin}, {self.images[row]}"

    def mask_content(self, row: int) -> bytes:
        return self.annotations[row].encode()

    def read_mask(self, row: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        stated = (int(self.sizes[row, 0]), int(self.sizes[row, 1]))
        name = printable(self.mask_name(row))
        if all(stated) and stated != size:
            raise mask_error(
                name,
                f"the file says {stated[0]} x {stated[1]} (height x width), its image is {size[0]} x {size[1]}; "
                "if the image was resized, resize its annotations, too",
            )
        mask = np.zeros(size, np.uint8)
        for annotation in json.loads(self.annotations[row]):
            try:
                area, number = self._area(annotation, size), self._class(annotation)
            except DecodeError as error:
                raise mask_error(f"{name}, annotation {annotation.get('id', 'without id')}", str(error)) from error
            mask[area] = number
        return mask

    def _class(self, annotation: Mapping[str, Any]) -> int:
        category = annotation.get("category_id")
        if type(category) is not int:
            raise DecodeError("it has no category_id")
        if category not in self.classes:
            raise DecodeError(f"its category_id {category} is none of the file's categories")
        return self.classes[category]

    @staticmethod
    def _area(annotation: Mapping[str, Any], size: tuple[int, int]) -> NDArray[np.bool_]:
        segmentation = annotation.get("segmentation")
        if isinstance(segmentation, dict):
            return decode_rle(segmentation, size)
        if not isinstance(segmentation, list) or not segmentation:
            raise DecodeError("it has no segmentation; boxes are for detection, which vitkit does not do")
        return rasterise(segmentation, size)
