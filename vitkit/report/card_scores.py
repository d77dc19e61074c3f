"""The scores of a run as a model card has them, whether classes are those of images or of pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitkit.evaluate.evaluation import Estimate, Evaluation
from vitkit.evaluate.segmentation_confusions import class_confusions
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation
from vitkit.report import summary
from vitkit.report.markdown import escape, table
from vitkit.report.run_data import RunData
from vitkit.report.segmentation_sections import weakest_classes
from vitkit.text import counted, interval, percent

WEAKEST = 5
CLASSES = 60  # in the table of a segmentation model; evaluation.json has all

Metric = tuple[str, str, Estimate]  # the Hub's name, ours, the score


@dataclass(frozen=True, kw_only=True)
class CardScores:
    task: str  # the Hub's name
    task_title: str
    split: str
    images: int
    metrics: Sequence[Metric]  # the main one first
    without_leaked: Sequence[Metric]  # on the images that have no copy among the training images
    further_rows: Sequence[tuple[str, str, str]]  # scores without an interval
    class_table: str  # in Markdown; "" where there is none
    weaknesses: Sequence[str]


def card_scores(run: RunData) -> CardScores | None:
    if run.segmentation is not None:
        return _of_masks(run.segmentation)
    return None if run.evaluation is None else _of_images(run.evaluation)


def _of_images(evaluation: Evaluation) -> CardScores:
    error = evaluation.calibration_error
    return CardScores(
        task="image-classification",
        task_title="Image classification",
        split=evaluation.split,
        images=evaluation.images,
        metrics=_present(
            ("accuracy", "top-1 accuracy", evaluation.top1),
            ("map", "mean average precision", evaluation.mean_average_precision),
            ("top_5_accuracy", "top-5 accuracy", evaluation.top5),
            ("real_accuracy", "ImageNet-ReaL accuracy", evaluation.real),
            ("f1", "macro-F1", evaluation.macro_f1),
            ("balanced_accuracy", "balanced accuracy", evaluation.balanced_accuracy),
        ),
        without_leaked=_images_without_leaked(evaluation),
        further_rows=[] if error is None else [("calibration error", percent(error), "")],
        class_table="",
        weaknesses=_weaknesses_of_images(evaluation),
    )


def _images_without_leaked(evaluation: Evaluation) -> list[Metric]:
    leaked = evaluation.leaked
    if leaked is None:
        return []
    suffix = f"without leaked images ({counted(leaked.others, 'other')})"
    return _present(
        ("accuracy", f"top-1 accuracy {suffix}", leaked.top1),
        ("map", f"mean average precision {suffix}", leaked.mean_average_precision),
        ("f1", f"macro-F1 {suffix}", leaked.macro_f1),
        ("balanced_accuracy", f"balanced accuracy {suffix}", leaked.balanced_accuracy),
    )


def _weaknesses_of_images(evaluation: Evaluation) -> list[str]:
    sentences = []
    weakest = summary.weak_classes(evaluation)[:WEAKEST]
    if weakest and not evaluation.multilabel:
        classes = ", ".join(f"{escape(score.name)} (recall {percent(score.recall)})" for score in weakest)
        sentences.append(f"Weakest classes: {classes}.")
    pairs = [
        f"{escape(pair.truth)} with {escape(pair.prediction)} ({pair.count + pair.reverse_count} times)"
        for pair in summary.most_confused(evaluation, WEAKEST)
    ]
    if pairs:
        sentences.append(f"Most often confused: {', '.join(pairs)}.")
    return sentences


def _of_masks(evaluation: SegmentationEvaluation) -> CardScores:
    leaked = evaluation.leaked
    clean = None if leaked is None else leaked.mean_iou
    suffix = "" if leaked is None else f" without leaked images ({counted(leaked.others, 'other')})"
    return CardScores(
        task="image-segmentation",
        task_title="Semantic segmentation",
        split=evaluation.split,
        images=evaluation.images,
        metrics=_present(
            ("mean_iou", "mean IoU", evaluation.mean_iou),
            ("accuracy", "pixel accuracy", evaluation.pixel_accuracy),
            ("mean_accuracy", "mean class accuracy", evaluation.mean_accuracy),
        ),
        without_leaked=_present(("mean_iou", f"mean IoU{suffix}", clean)),
        further_rows=[],
        class_table=_class_table(evaluation),
        weaknesses=_weaknesses_of_masks(evaluation),
    )


def _class_table(evaluation: SegmentationEvaluation) -> str:
    rows = [
        (
            escape(row.name),
            percent(row.iou.value),
            interval(row.iou.low, row.iou.high),
            percent(row.accuracy),
            percent(row.pixels / evaluation.pixels),
        )
        for row in evaluation.per_class
        if row.iou is not None
    ]
    more = f"\n\n{len(rows) - CLASSES:,} more classes are in evaluation.json." if len(rows) > CLASSES else ""
    return table(("class", "IoU", "95 % interval", "accuracy", "of pixels"), rows[:CLASSES]) + more


def _weaknesses_of_masks(evaluation: SegmentationEvaluation) -> list[str]:
    sentences = []
    weakest = [row for row in weakest_classes(evaluation) if row.iou is not None and row.iou.value < 1][:WEAKEST]
    if weakest:
        classes = ", ".join(
            f"{escape(row.name)} (IoU {percent(row.iou.value if row.iou else None)})" for row in weakest
        )
        sentences.append(f"Weakest classes: {classes}.")
    confusions = [escape(str(confusion)) for confusion in class_confusions(evaluation)[:WEAKEST]]
    if confusions:
        sentences.append(f"Most of the wrong pixels: {', '.join(confusions)}.")
    return sentences


def _present(*metrics: tuple[str, str, Estimate | None]) -> list[Metric]:
    return [(kind, name, estimate) for kind, name, estimate in metrics if estimate is not None]
