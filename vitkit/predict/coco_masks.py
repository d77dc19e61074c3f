"""Masks as COCO's JSON: images, categories, and for each image one annotation per class, as COCO-Stuff has them.

A class of pixels knows no objects: two cars beside each other are one area of cars, and cutting areas into connected
pieces would make up objects. So an annotation is all of an image's pixels of a class. Its RLE is exact; its polygons
follow the edges of pixels, and are so too. Categories are numbered from 1, in the order of the classes.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitkit.atomic import replacing
from vitkit.data.masks.outlines import outlines
from vitkit.data.masks.palette import Palette
from vitkit.data.masks.rle import encode_rle
from vitkit.errors import ConfigError
from vitkit.predict.mask_names import relative_names
from vitkit.predict.mask_rows import MaskRow

MaskForm = Literal["rle", "polygons"]


def annotations_of(mask: NDArray[np.uint8], classes: int, form: MaskForm) -> list[dict[str, Any]]:
    """Return an annotation for each class that a mask has, without ids."""
    return [_annotation(mask == number, number, form) for number in np.unique(mask).tolist() if number < classes]


def _annotation(area: NDArray[np.bool_], number: int, form: MaskForm) -> dict[str, Any]:
    rows, columns = (np.flatnonzero(area.any(axis)) for axis in (1, 0))
    top, left = int(rows[0]), int(columns[0])
    return {
        "category_id": number + 1,
        "segmentation": encode_rle(area) if form == "rle" else outlines(area),
        "area": int(area.sum()),
        "bbox": [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1],
        "iscrowd": 0,
    }


def write_coco(
    path: Path,
    rows: Callable[[], Iterator[MaskRow]],
    classes: tuple[str, ...],
    palette: Palette,
    info: Mapping[str, Any],
) -> None:
    """Write the JSON of all images, completely or not at all, and never all in memory.

    Images that could not be read are not among its images: "info" has their names and the reasons.
    """
    names = relative_names([row.image for row in rows()])
    failed = [{"file_name": row.image, "error": row.error} for row in rows() if row.error is not None]
    categories = [
        {"id": number, "name": name, "supercategory": "", "color": list(colour)}
        for number, (name, colour) in enumerate(zip(classes, palette, strict=True), 1)
    ]
    with replacing(path, ConfigError) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(f'{{"info": {json.dumps({**info, "failed": failed})},\n"licenses": [],\n"images": [')
        file.writelines(_separated(_images(rows(), names)))
        file.write('\n],\n"annotations": [')
        file.writelines(_separated(_annotations(rows())))
        file.write(f'\n],\n"categories": {json.dumps(categories)}}}\n')


def _images(rows: Iterator[MaskRow], names: list[str]) -> Iterator[dict[str, Any]]:
    for number, (row, name) in enumerate(zip(rows, names, strict=True), 1):
        if row.error is None:
            yield {"id": number, "file_name": name, "height": row.height, "width": row.width}


def _annotations(rows: Iterator[MaskRow]) -> Iterator[dict[str, Any]]:
    identifier = 0
    for number, row in enumerate(rows, 1):
        for annotation in row.annotations:
            identifier += 1
            yield {"id": identifier, "image_id": number, **annotation}


def _separated(records: Iterator[dict[str, Any]]) -> Iterator[str]:
    for index, record in enumerate(records):
        yield (",\n" if index else "\n") + json.dumps(record)
