"""Print an evaluation or the result of a probe, one line per score, weak class, confusion and skipped image."""

from collections.abc import Mapping, Sequence

import numpy as np

from vitkit.evaluate.evaluation import ClassScore, Estimate, Evaluation
from vitkit.evaluate.probe import ProbeResult
from vitkit.evaluate.rare_classes import recall_warning
from vitkit.messages import print_line
from vitkit.text import counted, few, percent

BAR = 24  # characters of the longest bar
SHOWN = 5  # weak classes, confusions and skipped images; --json has all of them


def print_evaluation(evaluation: Evaluation) -> None:
    print_row(
        "data",
        f"{evaluation.data}, {evaluation.split}: {counted(evaluation.images, 'image')}, "
        f"{counted(len(evaluation.classes), 'class')}",
    )
    if (mapped := evaluation.mapped) is not None:
        print_row(
            "map",
            f"{mapped.file}: {counted(mapped.model_classes, 'class')} of the model's {mapped.of:,} stand for them; "
            f"{counted(mapped.elsewhere, 'prediction is', 'predictions are')} of another class",
        )
    print_list("input", evaluation.inputs)
    for name, estimate in (
        ("top-1", evaluation.top1),
        ("top-5", evaluation.top5),
        ("ReaL", evaluation.real),
        ("macro-F1", evaluation.macro_f1),
        ("balanced", evaluation.balanced_accuracy),
        ("mean AP", evaluation.mean_average_precision),
    ):
        if estimate is not None:
            note = ", the mean recall of classes" if name == "balanced" else ""
            print_row(name, f"{percent(estimate.value):>7}   {interval_text(estimate)}{note}")
    if evaluation.leaked is not None:
        print_row("leaked", f"of these images, {evaluation.leaked.sentence()}")
    if evaluation.calibration_error is not None:
        print_row(
            "calibration", f"{percent(evaluation.calibration_error):>7}   mean gap between confidence and accuracy"
        )
    if evaluation.loss is not None:
        print_row("loss", f"{evaluation.loss:>7.3f}")
        print_list("weakest", weakest_classes(evaluation))
    print_list("confused", confusions(evaluation))
    if warning := recall_warning(evaluation, {}, None):
        print_row("warning", warning)
    if evaluation.missing:
        print_row(
            "missing", f"{counted(len(evaluation.missing), 'class')} only in the model: {few(evaluation.missing)}"
        )
    if evaluation.extra:
        print_row("extra", f"{counted(len(evaluation.extra), 'class')} only in the data: {few(evaluation.extra)}")
    if evaluation.unlabelled:
        lacking = "a ReaL label" if evaluation.loss is None else "a class of the model"
        print_row("unscored", f"{counted(evaluation.unlabelled, 'image')} without {lacking}")
    print_skipped(evaluation.left_out)


def weakest_classes(evaluation: Evaluation) -> list[str]:
    """Describe the classes with the lowest recall, or average precision in multi-label evaluations, below 100 %."""

    def strength(score: ClassScore) -> float:
        value = score.average_precision if evaluation.multilabel else score.recall
        return float("inf") if value is None else value

    metric = "average precision" if evaluation.multilabel else "recall"
    worst = sorted((score for score in evaluation.per_class if score.images and strength(score) < 1), key=strength)
    if not worst:
        return [f"none; the {metric} of every class is 100 %"]
    worst = worst[:SHOWN]
    column = max((len(score.name) for score in worst), default=0)
    return [
        f"{score.name:<{column}}  {metric} {percent(strength(score)):>7}, {counted(score.images, 'image')}"
        for score in worst
    ]


def confusions(evaluation: Evaluation) -> list[str]:
    """Describe the most frequent confusions: "shirt taken for coat 18 times"."""
    if not evaluation.confusion:
        return []
    names, wrong = evaluation.classes, np.array(evaluation.confusion)
    np.fill_diagonal(wrong, 0)
    largest = np.argsort(-wrong, axis=None, kind="stable")[:SHOWN]
    return [
        f"{names[truth]} taken for {names[prediction]} {_times(int(wrong[truth, prediction]))}"
        for truth, prediction in zip(*np.unravel_index(largest, wrong.shape), strict=True)
        if wrong[truth, prediction]
    ]


def print_probe(result: ProbeResult) -> None:
    ((scored, images),) = result.scored.items()
    fitted = " and ".join(f"{number:,} {name}" for name, number in result.fitted.items())
    print_row(
        "data",
        f"{result.data}: {fitted} to fit, {images:,} {scored} to score, {counted(len(result.classes), 'class')}",
    )
    print_list("input", result.inputs)
    print_row("features", f"{counted(result.width, 'feature')} per image, frozen")
    if result.layers:
        print_layers(result)
    for score in result.shots:
        spread = "" if score.spread is None else f" ± {100 * score.spread:.1f}"
        short = f"; {counted(score.short, 'class has', 'classes have')} fewer" if score.short else ""
        print_row(
            counted(score.shots, "shot"),
            f"{100 * score.mean:.1f} %{spread}   {counted(len(score.accuracies), 'seed')}, "
            f"{counted(score.images, 'image')} to fit{short}",
        )
    if result.neighbours is not None:
        print_row(
            "knn", f"{counted(result.neighbours, 'neighbour')}, cosine, votes exp(similarity / {result.temperature:g})"
        )
    if result.l2 is not None:
        print_row("linear", f"logistic regression, l2 = {result.l2:g}, the best of {len(result.tried)} on dev images")
    if result.top1 is not None:
        print_row("top-1", f"{100 * result.top1.value:.2f} %   {interval_text(result.top1)}")
    if (others := result.top1_without_leaked) is not None:
        copies = counted(result.leaked, "copy of a training image", "copies of training images")
        print_row("", f"{100 * others.value:.2f} %   {interval_text(others)} without {copies}")
    print_skipped(result.left_out)


def print_layers(result: ProbeResult) -> None:
    """Print the score of each layer with a bar, from the bottom; the best one is marked."""
    most = max(score.top1.value for score in result.layers)
    for index, score in enumerate(result.layers):
        bar = "█" * max(round(BAR * score.top1.value / most), 1)
        mark = "   best on the dev images" if score.layer == result.layer else ""
        print_row("" if index else "layers", f"{score.layer:<8} {100 * score.top1.value:5.2f} %  {bar:<{BAR}}{mark}")


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def interval_text(estimate: Estimate) -> str:
    return f"95 % interval {100 * estimate.low:.1f} to {100 * estimate.high:.1f}"


def print_skipped(failures: Mapping[str, str]) -> None:
    print_list("skipped", [f"{key}: {reason}" for key, reason in failures.items()][:SHOWN])
    if len(failures) > SHOWN:
        print_row("", f"… and {len(failures) - SHOWN:,} more; --json has all of them")


def print_row(name: str, text: str) -> None:
    print_line(f"{name:<11} {text}")


def print_list(name: str, rows: Sequence[str]) -> None:
    for index, text in enumerate(rows):
        print_row("" if index else name, text)
