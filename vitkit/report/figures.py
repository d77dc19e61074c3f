"""Figures of an evaluation: the reliability diagram and the confusion matrix."""

import unicodedata
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from vitkit.evaluate.evaluation import Evaluation
from vitkit.pages.svg import ACCENT, INK, MUTED, RULE, SECOND, canvas, inline_svg, plot_style, plot_text

LABELLED = 40  # classes, at most, of a confusion matrix with class names
MAX_ROWS = 240  # of a larger one: beyond that, neighbouring classes share a row


def reliability_diagram(evaluation: Evaluation) -> Markup | None:
    bins = [one for one in evaluation.reliability if one.images]
    if not bins:
        return None
    with plot_style():
        figure = canvas(400, 400)
        above = figure.add_axes((62 / 400, 124 / 400, 1 - 76 / 400, 1 - 134 / 400))
        below = figure.add_axes((62 / 400, 46 / 400, 1 - 76 / 400, 60 / 400), sharex=above)
        above.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        confidence, accuracy = [one.confidence for one in bins], [one.accuracy for one in bins]
        above.vlines(confidence, confidence, accuracy, color=SECOND, linewidth=2, alpha=0.6)
        most = max(one.images for one in bins)
        above.scatter(confidence, accuracy, s=[12 + 150 * one.images / most for one in bins], color=ACCENT, zorder=3)
        above.set(xlim=(0, 1.02), ylim=(0, 1.02), ylabel="accuracy")
        below.bar(
            [(one.low + one.high) / 2 for one in bins],
            [one.images for one in bins],
            [0.9 * (one.high - one.low) for one in bins],
            color=ACCENT,
            alpha=0.5,
        )
        below.set(xlabel="confidence", ylabel="images")
        below.yaxis.set_major_locator(MaxNLocator(2, integer=True))
        below.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
        above.tick_params(labelbottom=False)
        for axis in (above.xaxis, above.yaxis):
            axis.set_major_formatter(PercentFormatter(1, symbol=" %", decimals=0))
        figure.align_ylabels()
        return inline_svg(figure, "reliability", "Reliability diagram: accuracy by confidence")


def confusion_matrix(evaluation: Evaluation) -> Markup | None:
    """Draw true classes as rows, predictions as columns; correct ones in one colour, mistakes in another."""
    return draw_confusions(np.array(evaluation.confusion), evaluation.classes) if evaluation.confusion else None


def draw_confusions(counts: NDArray[np.int64], classes: Sequence[str]) -> Markup:
    """Draw counts, or per cent, of true classes (rows) and predictions (columns); names where there is room."""
    with plot_style():
        figure = _named_matrix(counts, classes) if len(counts) <= LABELLED else _dense_matrix(counts)
        return inline_svg(figure, "confusion", f"Confusion matrix of {len(counts)} classes")


def _named_matrix(counts: NDArray[np.int64], classes: Sequence[str]) -> Figure:
    cell = 22 if len(counts) > 16 else 40 if len(counts) > 6 else 64
    names = [_shortened(plot_text(name)) for name in classes]
    margin = 16 + 6.3 * max(map(_columns, names))
    side = cell * len(counts)
    width, height = margin + side + 2, margin + side + 2
    figure = canvas(width, height)
    axes = figure.add_axes((margin / width, 2 / height, side / width, side / height))
    _paint(axes, counts, strongest=0.6)  # counts in the cells stay legible
    ticks = np.arange(len(counts))
    axes.set_xticks(ticks, names, rotation=90)
    axes.set_yticks(ticks, names)
    axes.tick_params(labeltop=True, labelbottom=False, labelcolor=INK, pad=5)
    axes.set_xticks(ticks[1:] - 0.5, minor=True)
    axes.set_yticks(ticks[1:] - 0.5, minor=True)
    axes.grid(which="minor", axis="both", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    size = min(11.0, 1.5 * cell / len(str(counts.max())))
    for row, column in np.argwhere(counts):
        axes.text(column, row, str(counts[row, column]), ha="center", va="center_baseline", fontsize=size)
    return figure


def _dense_matrix(counts: NDArray[np.int64]) -> Figure:
    per_row = -(-len(counts) // MAX_ROWS)
    starts = np.arange(0, len(counts), per_row)
    counts = np.add.reduceat(np.add.reduceat(counts, starts, axis=0), starts, axis=1)
    figure = canvas(560, 560)
    axes = figure.add_axes((0.002, 0.002, 0.996, 0.996))
    _paint(axes, counts, strongest=1.0)
    axes.set(xticks=[], yticks=[])
    return figure


def _paint(axes: Axes, counts: NDArray[np.int64], *, strongest: float) -> None:
    """Paint shares of each true class, from transparent on; mistakes are rare, so they are painted more strongly."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    correct = np.eye(len(counts), dtype=bool)
    pixels = np.empty((*counts.shape, 4))
    pixels[..., :3] = np.where(correct[..., None], to_rgb(ACCENT), to_rgb(SECOND))
    pixels[..., 3] = strongest * np.where(correct, shares, np.minimum(1.8 * np.sqrt(shares), 1))
    axes.imshow(pixels, interpolation="none", aspect="auto")
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set(visible=True, color=RULE)


def _shortened(name: str, columns: int = 26) -> str:
    if _columns(name) <= columns:
        return name
    while _columns(name) > columns - 1:
        name = name[:-1]
    return name.rstrip() + "…"


def _columns(name: str) -> int:
    """Return the width in letters; East Asian ones count twice."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in name)
