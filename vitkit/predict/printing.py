"""Predictions printed for people: bars for a few images, a line each for many."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence

from vitkit.messages import print_line
from vitkit.predict.prediction import Answer, Prediction
from vitkit.text import printable

FEW = 6  # images that get bars
BAR = 24  # characters of a probability of 1
NAME = 40  # characters of a name in a line, at most
EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_predictions(predictions: Iterable[Prediction], names: Sequence[str], top: int) -> None:
    """Print predictions; `names` are those of all images, so that columns are aligned from the first line on."""
    if len(names) <= FEW:
        for index, prediction in enumerate(predictions):
            for line in [""] * (index > 0) + _bars(prediction, top):
                print_line(line)
        return
    common = common_folder(names)
    width = min(max(len(short_name(name, common)) for name in names), NAME)
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for prediction in predictions:
        name = short_name(prediction.name or "", common)
        name = name if len(name) <= width else "…" + name[1 - width :]
        print_line(_line(prediction, f"{name:<{width}}", top, room))


def _bars(prediction: Prediction, top: int) -> list[str]:
    name = prediction.name or ""
    if prediction.error is not None:
        return [name, f"  no prediction: {prediction.error}"]
    return [
        name,
        *(
            f"  {answer.probability:7.1%}  {bar(answer.probability)}  {answer.label}{_mark(prediction, answer)}"
            for answer in prediction.top(top)
        ),
    ]


def _mark(prediction: Prediction, answer: Answer) -> str:
    """Return a mark for the classes that a multi-label model predicts, those from their thresholds on."""
    return " ✓" if prediction.thresholds is not None and prediction.applies(answer) else ""


def bar(share: float) -> str:
    """Return a bar of block characters for a share of 1."""
    eighths = round(share * BAR * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()).ljust(BAR)


def _line(prediction: Prediction, name: str, top: int, room: int | None) -> str:
    """Return a line with as many answers as fit, but at least one."""
    if prediction.error is not None:
        return f"{name}  no prediction: {prediction.error}"
    line = name
    for index, answer in enumerate(prediction.top(top)):
        more = f"  {printable(answer.label)} {answer.probability:.1%}{_mark(prediction, answer)}"
        if index and room is not None and len(line) + len(more) > room:
            break
        line += more
    return line


def short_name(name: str, common: str) -> str:
    """Return an image's name below a folder."""
    return printable(os.path.relpath(name, common) if common else name)


def common_folder(names: Sequence[str]) -> str:
    """Return the folder that all images share, or nothing for relative names among absolute ones."""
    comparable = len({os.path.isabs(name) for name in names}) == 1
    return os.path.commonpath([os.path.dirname(name) or "." for name in names]) if comparable else ""
