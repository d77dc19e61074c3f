"""Classes of datasets that publish masks of numbers without a file of their names, recognised by their files."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vitkit.data.masks.class_table import NamedClass

_CAMVID = re.compile(r"(0001TP|0006R0|0016E5|Seq05VD)_f?\d+(_L)?\.png")


@dataclass(frozen=True)
class KnownClasses:
    dataset: str
    classes: tuple[NamedClass, ...]
    note: str


CAMVID = KnownClasses(
    "CamVid",
    (
        NamedClass("sky", 0, (128, 128, 128)),
        NamedClass("building", 1, (128, 0, 0)),
        NamedClass("pole", 2, (192, 192, 128)),
        NamedClass("road", 3, (128, 64, 128)),
        NamedClass("pavement", 4, (60, 40, 222)),
        NamedClass("tree", 5, (128, 128, 0)),
        NamedClass("sign", 6, (192, 128, 128)),
        NamedClass("fence", 7, (64, 64, 128)),
        NamedClass("car", 8, (64, 0, 128)),
        NamedClass("pedestrian", 9, (64, 64, 0)),
        NamedClass("bicyclist", 10, (0, 128, 192)),
        NamedClass("void", 11, (0, 0, 0)),
    ),
    "recognised as CamVid with SegNet's 11 classes; its number 11, void, is ignored",
)
PETS = KnownClasses(
    "Oxford-IIIT Pet",
    (
        NamedClass("animal", 1, (220, 90, 40)),
        NamedClass("background", 2, (40, 70, 130)),
        NamedClass("void", 3),
    ),
    "recognised as trimaps of Oxford-IIIT Pet: 1 is animal, 2 background, and the border, 3, is ignored",
)
_VOC_NAMES = (
    "background aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person "
    "pottedplant sheep sofa train tvmonitor"
).split()
VOC = KnownClasses(
    "PASCAL VOC",
    tuple(NamedClass(name, number) for number, name in enumerate(_VOC_NAMES)),
    "recognised as PASCAL VOC with its 21 classes; 255, the border of objects, is ignored",
)


def known_classes(masks: Sequence[str], others: Collection[str], numbers: Collection[int]) -> KnownClasses | None:
    """Return the classes of a known dataset by the paths of masks and other files, and the numbers that masks have."""
    used, files = frozenset(numbers), frozenset(path.lower() for path in others)
    if used <= set(range(12)) and all(_CAMVID.fullmatch(mask.rsplit("/", 1)[-1]) for mask in masks):
        return CAMVID
    trimaps = all(mask.startswith("annotations/trimaps/") for mask in masks)
    if used <= {1, 2, 3} and trimaps and "annotations/trainval.txt" in files:
        return PETS
    voc = all(mask.startswith("SegmentationClass/") for mask in masks)
    if used <= {*range(21), 255} and voc and any(path.startswith("imagesets/segmentation/") for path in files):
        return VOC
    return None
