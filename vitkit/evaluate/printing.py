"""What an evaluation found, for people: one line per score, then the classes and pictures to look at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vitkit.evaluate.evaluation import ClassScore, Estimate, Evaluation
from vitkit.text import counted, few

SHOWN = 5  # weak classes, confusions and pictures left out; --json has all of them


def print_evaluation(found: Evaluation) -> None:
    _line(
        "data",
        f"{found.data}, {found.split}: {counted(found.pictures, 'picture')}, {counted(len(found.classes), 'class')}",
    )
    for name, estimate in (
        ("top-1", found.top1),
        ("top-5", found.top5),
        ("ReaL", found.real),
        ("macro-F1", found.macro_f1),
        ("balanced", found.balanced_accuracy),
        ("mean AP", found.mean_average_precision),
    ):
        if estimate is not None:
            _line(name, _interval(estimate) + (", the mean recall of classes" if name == "balanced" else ""))
    if found.calibration_error is not None:
        _line("calibration", f"{_percent(found.calibration_error):>7}   between confidence and accuracy, on average")
    _line("loss", f"{found.loss:>7.3f}")
    _list("weakest", weakest(found))
    _list("confused", confusions(found))
    if found.missing:
        _line("missing", f"{counted(len(found.missing), 'class')} only the model has: {few(found.missing)}")
    if found.extra:
        _line("extra", f"{counted(len(found.extra), 'class')} only the data have: {few(found.extra)}")
    if found.unlabelled:
        _line("unscored", f"{counted(found.unlabelled, 'picture')} without a class of the model")
    _list("left out", [f"{key}: {reason}" for key, reason in found.left_out.items()][:SHOWN])
    if len(found.left_out) > SHOWN:
        _line("", f"… and {len(found.left_out) - SHOWN:,} more; --json has all of them")


def weakest(found: Evaluation) -> list[str]:
    """The classes with the lowest recall, or average precision where pictures have several labels."""

    def strength(score: ClassScore) -> float:
        value = score.average_precision if found.multilabel else score.recall
        return float("inf") if value is None else value

    worst = sorted((score for score in found.per_class if score.pictures), key=strength)[:SHOWN]
    what = "average precision" if found.multilabel else "recall"
    column = max((len(score.name) for score in worst), default=0)
    return [
        f"{score.name:<{column}}  {what} {_percent(strength(score)):>7}, {counted(score.pictures, 'picture')}"
        for score in worst
    ]


def confusions(found: Evaluation) -> list[str]:
    """ "shirt taken for coat 18 times": the most frequent first."""
    if not found.confusion:
        return []
    wrong = np.array(found.confusion)
    np.fill_diagonal(wrong, 0)
    places = np.argsort(-wrong, axis=None, kind="stable")[:SHOWN]
    return [
        f"{found.classes[truth]} taken for {found.classes[answer]} {_times(int(wrong[truth, answer]))}"
        for truth, answer in zip(*np.unravel_index(places, wrong.shape), strict=True)
        if wrong[truth, answer]
    ]


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def _interval(estimate: Estimate) -> str:
    low, high = (f"{100 * value:.1f}" for value in (estimate.low, estimate.high))
    return f"{_percent(estimate.value):>7}   95 % interval {low} to {high}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _line(name: str, text: str) -> None:
    print(f"{name:<11} {text}")


def _list(name: str, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        _line(name if number == 0 else "", text)
