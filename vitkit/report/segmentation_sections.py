"""The sections of a segmentation model's report: key figures, classes, masks side by side, confusions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from vitkit.data.sources.dataset import Split
from vitkit.evaluate.segmentation_confusions import class_confusions
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation, SegmentedClassScore
from vitkit.pages.html import KeyFigure
from vitkit.report import figures
from vitkit.report.mask_samples import WORST, PredictMask, ShownMasks, class_numbers, colours, shown_masks
from vitkit.report.run_data import RunData
from vitkit.text import counted, few, interval, percent

OPENED, FOLDED_FROM = 12, 24  # rows of the table of classes: a longer one is folded after the weakest
PAIRS = 12
LARGEST_MATRIX = 1_000  # cells to a side
NAMED = 12

NOTHING: dict[str, Any] = {
    name: [] for name in ("class_scores", "typical_masks", "worst_masks", "class_confusions", "legend")
}


@dataclass(frozen=True)
class LegendEntry:
    name: str
    colour: str  # in CSS


@dataclass(frozen=True)
class ClassRow:
    """A class with its colour and its share of the scored pixels."""

    score: SegmentedClassScore
    colour: str
    share: float


def segmentation_sections(run: RunData, split: Split | None, predict_mask: PredictMask | None) -> dict[str, Any]:
    """Return the content of the sections about masks; all are empty for a run that was not scored on masks."""
    evaluation = run.segmentation
    if evaluation is None:
        return NOTHING
    typical, worst = _masks(run, evaluation, split, predict_mask)
    rows = _class_rows(evaluation)
    opened = OPENED if len(rows) > FOLDED_FROM else len(rows)
    return {
        "class_scores": rows[:opened],
        "other_class_scores": rows[opened:],
        "absent_classes": [row.name for row in evaluation.per_class if row.iou is None],
        "typical_masks": typical,
        "worst_masks": worst,
        "legend": _legend(evaluation, [*typical, *worst]),
        "class_confusions": class_confusions(evaluation)[:PAIRS],
        "class_matrix": _matrix(evaluation),
        "large_images": evaluation.windows,
        "ignored_share": evaluation.ignored / max(evaluation.pixels + evaluation.ignored, 1),
    }


def segmentation_key_figures(evaluation: SegmentationEvaluation) -> list[KeyFigure]:
    estimates = {
        "Mean IoU": evaluation.mean_iou,
        "Pixel accuracy": evaluation.pixel_accuracy,
        "Mean class accuracy": evaluation.mean_accuracy,
    }
    key_figures = [
        KeyFigure(name, percent(estimate.value), interval(estimate.low, estimate.high))
        for name, estimate in estimates.items()
    ]
    leaked = evaluation.leaked
    if leaked is not None and (clean := leaked.mean_iou) is not None:
        number = f"{leaked.others:,} images; {interval(clean.low, clean.high)}"
        key_figures.insert(1, KeyFigure("Without leaked images", percent(clean.value), number))
    return key_figures


def segmentation_headline(evaluation: SegmentationEvaluation) -> str:
    """Return "61.2 % mean IoU (58.9 – 63.5), 233 test images, 11 classes"."""
    score = evaluation.mean_iou
    return (
        f"{percent(score.value)} mean IoU ({interval(score.low, score.high)}), "
        f"{counted(evaluation.images, f'{evaluation.split} image')}, {counted(len(evaluation.classes), 'class')}"
        f"{_without_leaked(evaluation)}"
    )


def segmentation_problems(evaluation: SegmentationEvaluation) -> list[str]:
    """Return what one should know before trusting the scores of masks."""
    sentences = []
    if evaluation.leaked is not None:
        sentences.append(
            f"Of the {counted(evaluation.images, 'scored image')}, {evaluation.leaked.sentence()}. Trust the score on "
            "the others, and remove the copies from one of the splits."
        )
    if evaluation.left_out:
        reasons = few([f"{name} ({reason})" for name, reason in evaluation.left_out.items()], NAMED)
        sentences.append(f"Scoring skipped {counted(len(evaluation.left_out), 'image')}: {reasons}.")
    if evaluation.unlabelled:
        images = counted(evaluation.unlabelled, "image")
        sentences.append(f"{images} of the {evaluation.split} split had no mask, and were not scored.")
    missed = [row.name for row in evaluation.per_class if row.iou is not None and row.pixels and not row.iou.value]
    if missed:
        sentences.append(f"Not one pixel was found of {counted(len(missed), 'class')}: {few(missed, NAMED)}.")
    invented = [row.name for row in evaluation.per_class if row.iou is not None and not row.pixels]
    if invented:
        sentences.append(
            f"{counted(len(invented), 'class is', 'classes are')} in no ground-truth mask but in predicted ones, which "
            f"counts as an IoU of 0: {few(invented, NAMED)}."
        )
    if evaluation.missing:
        sentences.append(
            f"The scored data lack {counted(len(evaluation.missing), 'class')} of the model: "
            f"{few(evaluation.missing, NAMED)}."
        )
    if evaluation.extra:
        sentences.append(
            f"The scored data have {counted(len(evaluation.extra), 'class')} that the model does not know, whose "
            f"pixels were ignored: {few(evaluation.extra, NAMED)}."
        )
    return sentences


def weakest_classes(evaluation: SegmentationEvaluation) -> list[SegmentedClassScore]:
    """Return the classes that occur, those with the lowest IoU first."""
    return sorted(
        (row for row in evaluation.per_class if row.iou is not None),
        key=lambda row: (row.iou.value if row.iou else 0.0, row.name),
    )


def _without_leaked(evaluation: SegmentationEvaluation) -> str:
    leaked = evaluation.leaked
    if leaked is None:
        return ""
    if leaked.mean_iou is None:
        return "; all of them are copies of training images or of their groups"
    others = f"the {leaked.others:,} that training has not seen"
    return f"; {percent(leaked.mean_iou.value)} ({interval(leaked.mean_iou.low, leaked.mean_iou.high)}) on {others}"


def _masks(
    run: RunData, evaluation: SegmentationEvaluation, split: Split | None, predict_mask: PredictMask | None
) -> tuple[list[ShownMasks], list[ShownMasks]]:
    if split is None or split.masks is None or predict_mask is None or run.architecture is None:
        return [], []
    channels = run.architecture.channels
    typical = shown_masks(evaluation.typical, split, evaluation, predict_mask, channels)
    return typical, shown_masks(evaluation.worst[:WORST], split, evaluation, predict_mask, channels)


def _class_rows(evaluation: SegmentationEvaluation) -> list[ClassRow]:
    by_name = dict(zip(evaluation.classes, colours(evaluation), strict=True))
    return [
        ClassRow(row, _css(by_name[row.name]), row.pixels / max(evaluation.pixels, 1))
        for row in weakest_classes(evaluation)
    ]


def _legend(evaluation: SegmentationEvaluation, shown: list[ShownMasks]) -> list[LegendEntry]:
    palette = colours(evaluation)
    return [LegendEntry(evaluation.classes[number], _css(palette[number])) for number in class_numbers(shown)]


def _matrix(evaluation: SegmentationEvaluation) -> Markup | None:
    """Draw the share of each true class's pixels that was predicted as each class, in per cent."""
    counts = np.array(evaluation.confusion, np.int64).reshape(len(evaluation.classes), -1)
    occurs = np.flatnonzero(counts.sum(0) + counts.sum(1))
    if not 1 < len(occurs) <= LARGEST_MATRIX:
        return None
    counts = counts[np.ix_(occurs, occurs)]
    percents = (100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)).round().astype(np.int64)
    return figures.draw_confusions(percents, [evaluation.classes[number] for number in occurs])


def _css(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
