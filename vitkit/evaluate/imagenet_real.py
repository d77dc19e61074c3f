"""Score against ImageNet-ReaL (Beyer et al. 2020, "Are we done with ImageNet?"): all classes in each validation image.

A prediction is correct when it is among them; images without any of the 1000 classes are not scored. The images need
no other labels: their names have their numbers. The file, real.json, is a list of lists of class indices, in the order
of ILSVRC2012_val_00000001 to 00050000.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.sources.dataset import DataError
from vitkit.errors import ConfigError
from vitkit.evaluate.evaluation import Estimate
from vitkit.evaluate.intervals import proportion
from vitkit.evaluate.matching import IMAGENET, in_imagenet_order
from vitkit.model.build import Model
from vitkit.stored_json import read_json

NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")

log = logging.getLogger("vitkit")

RealLabels = Sequence[Sequence[int]]  # the classes of image number i + 1


def read_real(path: Path, model: Model) -> RealLabels:
    """Read real.json and check it, and that the model has ImageNet's classes."""
    if not in_imagenet_order(model):
        raise ConfigError(
            "ReaL's labels are indices of ImageNet's 1000 classes in the order of their synsets; "
            f"this model has {model.config.classes} classes, which are not those."
        )
    try:
        content: Any = read_json(path, Any, error=DataError)
    except FileNotFoundError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    if not isinstance(content, list) or not all(isinstance(row, list) and all(map(_is_class, row)) for row in content):
        raise DataError(
            f"{path} is not ReaL's file of labels.",
            expected="real.json: for each validation image, a list of class indices from 0 to 999",
        )
    return content


def with_real_label(labels: RealLabels, keys: Iterable[str]) -> NDArray[np.int64]:
    """Return the indices of the images that have a ReaL label, by the number in their name; it is an error if none."""
    numbers = (NUMBER.search(key) for key in keys)
    indices = [
        index
        for index, number in enumerate(numbers)
        if number and (int(number[1]) > len(labels) or labels[int(number[1]) - 1])  # beyond the file: refused later
    ]
    if not indices:
        raise _no_real_label()
    return np.array(indices, dtype=np.int64)


def real_accuracy(labels: RealLabels, keys: Iterable[str], predictions: Iterable[int]) -> Estimate:
    """Return the ReaL accuracy of one prediction per image; `keys` are the images' file names."""
    correct = scored = unnumbered = 0
    for key, prediction in zip(keys, predictions, strict=True):
        number = NUMBER.search(key)
        if number is None:
            unnumbered += 1
            continue
        index = int(number[1]) - 1
        if not 0 <= index < len(labels):
            raise DataError(f"ReaL's file has no labels for {key}.", found=f"{len(labels):,} images in the file")
        correct += prediction in labels[index]
        scored += bool(labels[index])
    if not scored:
        raise _no_real_label()
    if unnumbered:
        log.warning(
            "ReaL: %s images do not have names of ImageNet's validation set and are not scored", f"{unnumbered:,}"
        )
    return proportion(correct, scored)


def _no_real_label() -> DataError:
    return DataError(
        "none of these images has a ReaL label.",
        looked_for="ILSVRC2012_val_00000001.JPEG and so on, in any folder",
    )


def _is_class(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < IMAGENET
