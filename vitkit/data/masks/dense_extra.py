"""The extra `dense`: pycocotools, which turns polygons into masks, is imported when the first one is read."""

import importlib
import importlib.util
from typing import Any

from vitkit.errors import VitkitError


class MissingExtra(VitkitError):
    """A package of the extra `dense` that is not installed."""


def coco_mask() -> Any:
    """Return the module pycocotools.mask."""
    check_dense()
    return importlib.import_module("pycocotools.mask")


def check_dense() -> None:
    """Raise MissingExtra where polygons cannot be read on this machine."""
    if importlib.util.find_spec("pycocotools") is None:
        raise MissingExtra("masks from polygons need pycocotools.", try_='pip install "vitkit[dense]"')
