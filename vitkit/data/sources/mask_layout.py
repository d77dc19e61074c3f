"""Which files of a folder are the masks of which images, by their names alone.

Masks are in a folder beside that of the images (images/a.jpg and masks/a.png; train/a.png and trainannot/a.png), with
splits above or below, or next to their images (a.jpg and a.png; a.png and a_mask.png).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from vitkit.data.sources.image_files import extension
from vitkit.data.sources.splits import ALL, canonical_split, check_split_spellings
from vitkit.text import counted, few, printable

IMAGE_FOLDERS = frozenset("images image imgs img jpegimages leftimg8bit input inputs photos".split())
MASK_FOLDERS = frozenset(
    """
    masks mask annot annots gt gts groundtruth ground_truth ground_truths segmentation segmentations segmentationclass
    segmentationclassraw semantic labelids trimaps trimap gtfine seg segs
    """.split()
)
CLASS_NAMES_TOO = frozenset("labels label annotations annotation".split())  # a class may be called so
_MASK_SUFFIX = re.compile(r"(?i)(_gtFine)?[_-](masks?|labels?|gt|seg|segmentation|labelids|trimap)$|_L$")
_IMAGE_SUFFIX = re.compile(r"(?i)[_-](leftImg8bit|image|img|sat|rgb)$")
_YEAR = re.compile(r"(?i)(train|val|test|trainval)[_-]?\d{4}")
_SPLIT_AND_ROLE = re.compile(r"(?i)([a-z]+?)(?:\d{4})?[_-]?(annots?|annotations?|masks?|labels?|gt|images?|imgs?)")
_ROLE_AND_SPLIT = re.compile(r"(?i)(annots?|annotations?|masks?|labels?|gt|images?|imgs?)[_-]?([a-z]+)(?:\d{4})?")


Role = Literal["image", "mask", "either", ""]  # "either": a folder of masks, or a class


@dataclass
class MaskLayout:
    """Images by split, and the mask of each, "" where there is none."""

    images: dict[str, list[str]] = field(default_factory=dict)
    masks: dict[str, list[str]] = field(default_factory=dict)
    orphans: list[str] = field(default_factory=list)  # masks without an image
    all_masks: list[str] = field(default_factory=list)  # those, the ones of images, and further ones of an image
    notes: list[str] = field(default_factory=list)
    certain: bool = True  # otherwise the names fit class folders as well, and the files have to be looked into

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [
            pair
            for split, images in self.images.items()
            for pair in zip(images, self.masks[split], strict=True)
            if pair[1]
        ]


@dataclass(frozen=True)
class _Folder:
    role: Role
    split: str | None
    spelling: str | None  # of the split
    rest: tuple[str, ...]  # folders that are neither


def split_of_folder(name: str) -> str | None:
    """Return the split that a folder's name names, with or without a year: "train" for "train2017"."""
    match = _YEAR.fullmatch(name)
    return canonical_split(match[1] if match else name)


def find_mask_layout(source: str, paths: Sequence[str]) -> MaskLayout | None:
    """Return the layout of images and masks among these relative paths; None where they show none."""
    return find_parallel_masks(source, paths) or _adjacent(source, paths)


def name_masks(folders: Iterable[str]) -> bool:
    """Return whether one of these folders, or one above it, is called as folders of masks are."""
    return any(_folder(folder).role in ("mask", "either") for folder in folders)


def find_parallel_masks(source: str, paths: Sequence[str]) -> MaskLayout | None:
    """Return the layout of masks in folders of their own."""
    folders = {folder: _folder(folder) for folder in {os.path.dirname(path) for path in paths}}
    role = {path: folders[os.path.dirname(path)].role for path in paths}
    masks = [path for path in paths if role[path] in ("mask", "either")]
    images = [path for path in paths if role[path] == "image"] or [path for path in paths if not role[path]]
    if not masks or not images:
        return None
    layout = _match(source, images, masks, folders)
    matched = len(masks) - len(layout.orphans)
    if any(role[path] == "either" for path in masks):
        if layout.orphans or not _all_have_masks(layout):
            return None
        layout.certain = False
    elif not matched or 2 * matched < min(len(masks), len(images)):  # an image may have colours and polygons, too
        return None
    skipped = sorted(set(paths) - set(images) - set(masks))
    if skipped:
        layout.notes.append(f"neither among the images nor the masks, skipped: {_few(skipped)}")
    return layout


def _adjacent(source: str, paths: Sequence[str]) -> MaskLayout | None:
    """Return the layout of masks in the folders of their images; files alone do not tell it from class folders."""
    masks = [path for path in paths if _MASK_SUFFIX.search(os.path.splitext(path)[0])]
    if not masks:  # a.jpg and a.png
        photos = {os.path.splitext(path)[0] for path in paths if extension(path) in (".jpg", ".jpeg")}
        masks = [path for path in paths if extension(path) == ".png" and os.path.splitext(path)[0] in photos]
        if not masks or 2 * len(masks) != len(paths):
            return None
    are_masks = set(masks)
    images = [path for path in paths if path not in are_masks]
    if not images:
        return None
    folders = {folder: _folder(folder) for folder in {os.path.dirname(path) for path in paths}}
    layout = _match(source, images, masks, folders)
    matched = len(masks) - len(layout.orphans)
    layout.certain = False
    return layout if matched and 2 * matched >= max(len(masks), len(images)) else None


def _match(source: str, images: Sequence[str], masks: Sequence[str], folders: dict[str, _Folder]) -> MaskLayout:
    """Give each image the mask whose folders and name correspond to its own."""
    spellings = {folders[os.path.dirname(image)].spelling for image in images}
    check_split_spellings(source, {spelling.lower() for spelling in spellings if spelling})
    by_name: dict[tuple[str | None, tuple[str, ...], str], str] = {}
    for image in images:
        folder, name = os.path.split(image)
        stem = os.path.splitext(name)[0]
        for alias in (name, _IMAGE_SUFFIX.sub("", stem), stem):  # a.jpg.png is the mask of a.jpg, too
            by_name[folders[folder].split, folders[folder].rest, alias] = image
    mask_of: dict[str, str] = {}
    layout, more = MaskLayout(all_masks=list(masks)), list[str]()
    for mask in masks:
        folder, name = os.path.split(mask)
        stem = os.path.splitext(name)[0]
        keys = ((folders[folder].split, folders[folder].rest, alias) for alias in (stem, _MASK_SUFFIX.sub("", stem)))
        image = next((by_name[key] for key in keys if key in by_name), "")
        if not image:
            layout.orphans.append(mask)
        elif image in mask_of:
            more.append(mask)
        else:
            mask_of[image] = mask
    if more:
        layout.notes.append(f"second masks of an image, skipped: {_few(more)}")
    has_splits = any(folders[os.path.dirname(image)].split for image in images)
    outside = []
    for image in images:
        split = folders[os.path.dirname(image)].split or ("" if has_splits else ALL)
        if not split:
            outside.append(image)
            continue
        layout.images.setdefault(split, []).append(image)
        layout.masks.setdefault(split, []).append(mask_of.get(image, ""))
    if outside:
        layout.notes.append(f"in no split, skipped: {_few(outside)}")
    return layout


def _all_have_masks(layout: MaskLayout) -> bool:
    """Return whether every image has a mask, in the splits that have any."""
    return any(map(any, layout.masks.values())) and all(all(masks) for masks in layout.masks.values() if any(masks))


@cache
def _folder(folder: str) -> _Folder:
    role: Role = ""
    split = spelling = None
    rest = []
    for part in folder.split("/") if folder else ():
        own_role, own_split = _role_and_split(part)
        if own_split:
            split, spelling = own_split, part if canonical_split(part) else own_split
        if own_role:
            role = own_role
        if not own_role and not own_split:
            rest.append(part)
    return _Folder(role, split, spelling, tuple(rest))


def _role_and_split(part: str) -> tuple[Role, str | None]:
    lower = part.lower()
    if lower in IMAGE_FOLDERS:
        return "image", None
    if lower in MASK_FOLDERS:
        return "mask", None
    if lower in CLASS_NAMES_TOO:
        return "either", None
    if split := split_of_folder(part):
        return "", split
    for match, groups in ((_SPLIT_AND_ROLE.fullmatch(part), (1, 2)), (_ROLE_AND_SPLIT.fullmatch(part), (2, 1))):
        if match and (split := canonical_split(match[groups[0]])):
            return "image" if match[groups[1]].lower().startswith(("image", "img")) else "mask", split
    return "", None


def _few(paths: Sequence[str]) -> str:
    return f"{counted(len(paths), 'file')}: {few([*map(printable, paths)], 3)}"
