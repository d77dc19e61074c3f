"""Print the evaluation of a segmentation model: mean IoU, a table of classes, confusions and the worst images."""

from vitkit.evaluate.printing import SHOWN, interval_text, print_list, print_row, print_skipped
from vitkit.evaluate.segmentation_confusions import class_confusions
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation
from vitkit.text import counted, few, interval, percent, printable

MOST_CLASSES = 40  # in the table; --json has all of them
NAME = 32  # characters of a class's name


def print_segmentation(evaluation: SegmentationEvaluation) -> None:
    print_row(
        "data",
        f"{evaluation.data}, {evaluation.split}: {counted(evaluation.images, 'image')}, "
        f"{counted(len(evaluation.classes), 'class')}",
    )
    print_list("input", evaluation.inputs)
    if evaluation.windows:
        print_row("windows", f"{counted(evaluation.windows, 'large image')} in overlapping windows")
    scored = sum(row.iou is not None for row in evaluation.per_class)
    for name, estimate, note in (
        ("mean IoU", evaluation.mean_iou, f"over {counted(scored, 'class')}"),
        ("accuracy", evaluation.mean_accuracy, "the mean accuracy of classes"),
        ("pixels", evaluation.pixel_accuracy, _describe_pixels(evaluation)),
    ):
        print_row(name, f"{percent(estimate.value):>7}   {interval_text(estimate)}, {note}")
    if evaluation.leaked is not None:
        print_row("leaked", f"of these images, {evaluation.leaked.sentence()}")
    print_list("classes", class_table(evaluation))
    print_list("confused", [str(confusion) for confusion in class_confusions(evaluation)[:SHOWN]])
    print_list("worst", [f"{percent(one.mean_iou):>7}   {one.key}" for one in evaluation.worst[:SHOWN]])
    if evaluation.missing:
        print_row(
            "missing", f"{counted(len(evaluation.missing), 'class')} only in the model: {few(evaluation.missing)}"
        )
    if evaluation.extra:
        print_row("extra", f"{counted(len(evaluation.extra), 'class')} only in the data: {few(evaluation.extra)}")
    if evaluation.unlabelled:
        print_row("unscored", f"{counted(evaluation.unlabelled, 'image')} without a mask")
    print_skipped(evaluation.left_out)


def class_table(evaluation: SegmentationEvaluation) -> list[str]:
    """Return a line for each class that occurs: its IoU with the interval, accuracy and share of pixels."""
    rows = [row for row in evaluation.per_class if row.iou is not None]
    if not rows:
        return []
    names = [printable(row.name) for row in rows]
    names = [name if len(name) <= NAME else f"{name[: NAME - 1]}…" for name in names]
    column = max(len("class"), *map(len, names[:MOST_CLASSES]))
    lines = [f"{'class':<{column}}      IoU   95 % interval  accuracy   pixels"]
    for name, row in list(zip(names, rows, strict=True))[:MOST_CLASSES]:
        assert row.iou is not None
        lines.append(
            f"{name:<{column}}  {percent(row.iou.value):>7}  {interval(row.iou.low, row.iou.high):>14}"
            f"  {percent(row.accuracy):>8}  {percent(row.pixels / evaluation.pixels):>7}"
        )
    if len(rows) > MOST_CLASSES:
        lines.append(f"… and {len(rows) - MOST_CLASSES:,} more; --json has all of them")
    absent = [row.name for row in evaluation.per_class if row.iou is None]
    if absent:
        lines.append(f"no mask, given or predicted, has {few(absent)}")
    return lines


def _describe_pixels(evaluation: SegmentationEvaluation) -> str:
    share = evaluation.ignored / (evaluation.pixels + evaluation.ignored)
    ignored = f"; {percent(share)} of all are ignored" if evaluation.ignored else ""
    return f"of {counted(evaluation.pixels, 'pixel')}{ignored}"
