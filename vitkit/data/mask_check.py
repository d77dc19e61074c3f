"""Check the masks of segmentation data: those that cannot be used, and how much each class covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitkit.data.decode_memory import decode_memory
from vitkit.data.masks.ignore import IGNORE
from vitkit.data.sources.dataset import Data
from vitkit.data.sources.splits import TRAINING_SPLITS
from vitkit.errors import VitkitError
from vitkit.progress import Progress, no_progress
from vitkit.text import counted, few

RARE_SHARE = 0.001  # of the pixels of training masks, under which the report has a remark about a class
FEW_IMAGES = 10  # with a class, under which there is one, too
MOST_LINES = 24  # of classes in the text
NUMBER = 13  # characters of "99,999 images"


@dataclass
class ClassCover:
    """A class in the masks of a split."""

    images: int  # that have a pixel of it
    share: float  # of the pixels that are not ignored


@dataclass
class MaskReport:
    """The result of a check of masks."""

    bad: list[tuple[str, str]] = field(default_factory=list)  # the image's key, why its mask cannot be used
    without: dict[str, int] = field(default_factory=dict)  # split → images without a mask
    all_ignored: list[str] = field(default_factory=list)  # keys of images whose masks have no pixel of a class
    ignored: dict[str, float] = field(default_factory=dict)  # split → share of all pixels that is ignored
    cover: dict[str, dict[str, ClassCover]] = field(default_factory=dict)  # split → class → how much it covers
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def check_masks(
    data: Data,
    sizes: Mapping[str, Sequence[tuple[int, int]]],
    *,
    workers: int = 4,
    progress: Progress = no_progress,
) -> MaskReport:
    """Read every mask once; `sizes` has the (height, width) of each image of a split, (0, 0) where it is damaged."""
    report = MaskReport()
    for name, split in data.splits.items():
        masked = [index for index in split.rows_with_labels().tolist() if all(sizes[name][index])]
        counts = np.zeros((len(masked), 256), np.int64)

        def examine(index: int, name: str = name) -> NDArray[np.int64] | str:
            try:
                with decode_memory.hold():
                    mask = data.splits[name].read_mask(index, sizes[name][index])
                return np.bincount(mask.ravel(), minlength=256)
            except VitkitError as error:
                return error.what

        with ThreadPoolExecutor(max(workers, 1)) as pool:
            for row, result in enumerate(progress(pool.map(examine, masked), len(masked), f"masks of {name}")):
                if isinstance(result, str):
                    report.bad.append((split.keys[masked[row]], result))
                else:
                    counts[row] = result
        _add_cover(report, data, name, counts)
        report.all_ignored += [
            split.keys[masked[row]] for row in np.flatnonzero(counts[:, IGNORE] == np.maximum(counts.sum(axis=1), 1))
        ]
        if missing := len(split) - split.count_labelled():
            report.without[name] = missing
    _judge(report, data)
    return report


def _add_cover(report: MaskReport, data: Data, split: str, counts: NDArray[np.int64]) -> None:
    """Add the shares of classes; counts are (masks, 256) pixels."""
    pixels, total = counts.sum(axis=0), int(counts.sum())
    labelled = max(total - int(pixels[IGNORE]), 1)
    report.ignored[split] = int(pixels[IGNORE]) / max(total, 1)
    report.cover[split] = {
        name: ClassCover(int((counts[:, number] > 0).sum()), int(pixels[number]) / labelled)
        for number, name in enumerate(data.classes)
    }


def _judge(report: MaskReport, data: Data) -> None:
    masks = sum(split.count_labelled() for split in data.splits.values())
    if report.bad:
        report.problems.append(f"{len(report.bad):,} of {masks:,} masks cannot be used")
    if report.all_ignored:
        number = counted(len(report.all_ignored), "mask has", "masks have")
        report.remarks.append(f"{number} ignored pixels only, which teach nothing: {few(report.all_ignored, 3)}")
    training = next((name for name in TRAINING_SPLITS if name in data.splits), None)
    for split, classes in report.cover.items():
        if (
            split != training
            and data.splits[split].count_labelled()
            and not any(one.images for one in classes.values())
        ):
            report.problems.append(f"{split} has no pixel of any class: nothing can be scored on it")
    if training is None:
        return
    cover = report.cover[training]
    absent = [name for name, one in cover.items() if not one.images]
    if absent:
        report.problems.append(f"{training} has no pixel of {few(absent)}, which cannot be learned")
    present = {name: one for name, one in cover.items() if one.images}
    if rare := [f"{name} ({_share(one.share)})" for name, one in present.items() if one.share < RARE_SHARE]:
        number = counted(len(rare), "class covers", "classes cover")
        report.remarks.append(f"{number} almost none of the pixels of {training}: {few(rare)}")
    if scarce := [f"{name} ({one.images})" for name, one in present.items() if one.images < FEW_IMAGES]:
        number = counted(len(scarce), "class is", "classes are")
        report.remarks.append(f"{number} in fewer than {FEW_IMAGES} images of {training}: {few(scarce)}")


def cover_lines(report: MaskReport, classes: Sequence[str]) -> list[str]:
    """Return a line of text for each class, or for the largest and the smallest of many: its pixels and its images."""
    first = next(iter(report.cover.values()))
    shown = [*classes]
    if len(classes) > MOST_LINES:
        by_size = sorted(classes, key=lambda name: -first[name].share)
        shown = [*by_size[: MOST_LINES // 2], *by_size[-MOST_LINES // 2 :]]
    width = max(map(len, shown), default=0)
    lines = []
    for name in shown:
        columns = [
            f"{split} {_share(cover[name].share):>8} of pixels, {counted(cover[name].images, 'image'):>{NUMBER}}"
            for split, cover in report.cover.items()
        ]
        lines.append(f"{name:<{width}}  {';  '.join(columns)}")
    if len(shown) < len(classes):
        lines.insert(MOST_LINES // 2, f"… {len(classes) - len(shown)} classes between; --json has all of them")
    if any(report.ignored.values()):
        ignored = (f"{_share(share)} of {name}" for name, share in report.ignored.items() if share)
        lines.append("ignored pixels: " + ", ".join(ignored))
    return lines


def _share(share: float) -> str:
    """Return a share with two digits where it is small: "0.012 %"."""
    percents = 100 * share
    if not percents:
        return "nothing"
    return f"{percents:.1f} %" if percents >= 1 else f"{percents:.2g} %" if percents >= 0.001 else "<0.001 %"
