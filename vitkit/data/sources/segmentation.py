"""Build `Data` with masks from what a source has found: images by split, and which of them have one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitkit.data.masks.palette import Palette
from vitkit.data.masks.store import MaskStore
from vitkit.data.sources.class_labels import label_notes
from vitkit.data.sources.dataset import AllRows, Data, DataError, ImageStore, PackedStrings, Split
from vitkit.data.sources.splits import SPLITS
from vitkit.text import counted

BACKGROUND = "background"  # the class of pixels that no object covers
MASKED, UNMASKED = 0, -1  # labels of images with and without a mask


@dataclass(frozen=True)
class RawMasks:
    """One split as a source has it: row i of both stores is the image keys[i]."""

    keys: PackedStrings
    store: ImageStore
    masks: MaskStore
    has_mask: Sequence[bool]


def build_segmentation(
    name: str,
    kind: str,
    raw_splits: Mapping[str, RawMasks],
    classes: Sequence[str],
    palette: Palette,
    notes: Iterable[str] = (),
) -> Data:
    """Build the data of a source; its classes are those of pixels, in the order of their numbers."""
    if not any(any(raw.has_mask) for raw in raw_splits.values()):
        raise DataError(f"{name} has no image with a mask: {kind}.")
    splits, all_notes = {}, [*notes]
    for split in sorted(raw_splits, key=SPLITS.index):
        raw = raw_splits[split]
        labels = np.where(np.asarray(raw.has_mask, bool), MASKED, UNMASKED).astype(np.int64)
        splits[split] = Split(raw.keys, labels, raw.store, AllRows(len(raw.keys)), masks=raw.masks)
        if missing := int((labels == UNMASKED).sum()):
            all_notes.append(f"{split} has {counted(missing, 'image')} without a mask, which counts nowhere")
    named = tuple(classes)
    all_notes += label_notes(named, {})
    return Data(name, kind, named, splits, tuple(all_notes), task="segment", palette=palette)


def with_background(names: Iterable[str]) -> list[str]:
    """Return the names of classes of objects, each once, after that of the background, which may be among them."""
    unique = list(dict.fromkeys(names))
    background = next((name for name in unique if name.lower() == BACKGROUND), BACKGROUND)
    return [background, *(name for name in unique if name != background)]
