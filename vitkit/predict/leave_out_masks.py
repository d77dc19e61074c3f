"""The images of folders that hold their masks, too: nobody wants the classes, vectors or masks of masks."""

import contextlib
import os
from collections.abc import Sequence

import numpy as np

from vitkit.data.sources.dataset import DataError, Split
from vitkit.data.sources.mask_layout import find_parallel_masks, name_masks
from vitkit.storage.urls import is_url


def leave_out_masks(split: Split, sources: Sequence[str]) -> tuple[Split, list[str]]:
    """Return the images without the masks that folders among the sources hold beside them, and those masks.

    Masks are recognised by the names of folders, such as images/ and masks/. Masks next to their images count as
    images.
    """
    masks: set[str] = set()
    if not name_masks({os.path.dirname(key) for key in split.keys}):  # the common case, of a million names
        return split, []
    for source in sources:
        if is_url(source) or not os.path.isdir(source):
            continue
        below = os.path.join(os.path.normpath(source), "")
        below = "" if below == os.path.join(os.curdir, "") else below
        by_path = {os.path.normpath(key).removeprefix(below): key for key in split.keys if _is_below(key, below)}
        with contextlib.suppress(DataError):  # two spellings of a split, which matter to who trains on them
            layout = find_parallel_masks(source, [*by_path])
            if layout is not None and layout.certain:
                masks.update(by_path[mask] for mask in layout.all_masks)
    if not masks:
        return split, []
    kept = np.array([number for number, key in enumerate(split.keys) if key not in masks], dtype=np.int64)
    return split.select(kept), sorted(masks)


def _is_below(key: str, folder: str) -> bool:
    return not is_url(key) and os.path.normpath(key).startswith(folder)
