"""ImageNet-ReaL (Beyer et al. 2020, "Are we done with ImageNet?"): the validation pictures labelled again, with all the
classes that people saw in each.

An answer is right when it is among them; pictures in which nobody saw any of the 1000 classes are left out. The file,
real.json, is a list of lists of class indices, in the order of ILSVRC2012_val_00000001 to 00050000.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitkit.data.sources.base import DataError
from vitkit.errors import ConfigError
from vitkit.evaluate.evaluation import Estimate
from vitkit.evaluate.intervals import share
from vitkit.evaluate.matching import IMAGENET, in_imagenet_order
from vitkit.model.build import Model

NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")

log = logging.getLogger("vitkit")

Seen = Sequence[Sequence[int]]  # the classes of each picture, by its number less one


def read_real(path: Path, model: Model) -> Seen:
    """Checked, also that the model's answers mean the same classes."""
    if not in_imagenet_order(model):
        raise ConfigError(
            "ReaL's labels are indices of ImageNet's 1000 classes in the order of their synsets; "
            f"this model has {model.config.classes} classes, or others."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, list) or not all(isinstance(row, list) and all(map(_is_class, row)) for row in content):
        raise DataError(
            f"{path} is not ReaL's file of labels.",
            expected="real.json: a list, for each validation picture, of class indices from 0 to 999",
        )
    return content


def real_accuracy(seen: Seen, keys: Iterable[str], answers: Iterable[int]) -> Estimate:
    """`keys` are the pictures' names, `answers` the model's best ones."""
    right = counted = strange = 0
    for key, answer in zip(keys, answers, strict=True):
        number = NUMBER.search(key)
        if number is None:
            strange += 1
            continue
        place = int(number[1]) - 1
        if not 0 <= place < len(seen):
            raise DataError(
                f"{key} has a number that ReaL's file does not have.", found=f"{len(seen):,} pictures in the file"
            )
        right += answer in seen[place]
        counted += bool(seen[place])
    if not counted:
        raise DataError(
            "none of these pictures has a label of ReaL's.",
            looked_for="ILSVRC2012_val_00000001.JPEG and so on, in any folder",
        )
    if strange:
        log.warning(
            "ReaL: %s pictures are not of ImageNet's validation set by their names, and not counted", f"{strange:,}"
        )
    return share(right, counted)


def _is_class(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < IMAGENET
