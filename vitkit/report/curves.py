"""Training curves as small panels: loss, score, learning rate and gradient norm over the steps.

Each is about as wide as a phone; on a desktop the page sets them side by side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from vitkit.pages.svg import ACCENT, MUTED, SECOND, canvas, inline_svg, plot_style
from vitkit.report.run_data import JsonObject, RunData

WIDTH, HEIGHT = 400, 240
POINTS = 240  # of a curve, at most: more would only make the file larger
TICK_STEPS = [1, 2, 2.5, 5, 10]

SCORES = {"top1": "Accuracy", "map": "Mean average precision", "mean_iou": "Mean IoU"}  # keys of validation scores

Values = NDArray[np.float64]
Curve = tuple[Values, Values]  # steps, values
LegendLocation = Literal["upper right", "lower right"]  # away from curves that fall or rise


@dataclass(frozen=True)
class TrainingCurve:
    title: str
    explanation: str  # how to read it
    svg: Markup


def training_curves(run: RunData) -> list[TrainingCurve]:
    with plot_style():
        curves = [*_losses(run), _score(run), _pixel_accuracy(run), _learning_rate(run), _gradient_norm(run)]
    return [curve for curve in curves if curve is not None]


def _losses(run: RunData) -> list[TrainingCurve | None]:
    """Return a panel with both losses, or one for each where training minimises another loss than is validated."""
    training, validation = _column(run.steps, "loss"), _column(run.scores, "loss")
    if training is None and validation is None:
        return []
    explanation = "Lower is better. The line is a running mean, the shade behind it the spread of single steps."
    overfitting = " Validation loss that rises while training loss still falls means overfitting."
    if training is None or validation is None or not any("mask_loss" in row for row in run.steps):
        explanation += overfitting if validation is not None else ""
        return [_panel("Loss", explanation, training, validation, legend="upper right")]
    of_queries = " It is the loss of mask queries: classes, cross-entropy of masks and dice, of several blocks."
    of_pixels = "Lower is better. It is the cross-entropy of pixels, on another scale than the training loss."
    return [
        _panel("Training loss", explanation + of_queries, training, None),
        _panel("Validation loss", of_pixels + overfitting, None, validation),
    ]


def _score(run: RunData) -> TrainingCurve | None:
    name = next((name for name in SCORES if any(name in row for row in run.scores)), None)
    training, validation = _column(run.steps, "accuracy"), _column(run.scores, name or "top1")
    if training is None and validation is None:
        return None
    title = SCORES[name or "top1"]
    explanation = "Higher is better."
    if validation is not None:
        explanation += " Validation images are never trained on."
    if training is not None:
        explanation += " Training images are augmented at random, which makes them harder."
    return _panel(title, explanation, training, validation, legend="lower right", as_percent=True)


def _pixel_accuracy(run: RunData) -> TrainingCurve | None:
    training, validation = _column(run.steps, "pixel_accuracy"), _column(run.scores, "pixel_accuracy")
    if training is None and validation is None:
        return None
    explanation = "The share of pixels with the right class, which large classes decide. Higher is better."
    return _panel("Pixel accuracy", explanation, training, validation, legend="lower right", as_percent=True)


def _learning_rate(run: RunData) -> TrainingCurve | None:
    rates = _column(run.steps, "lr")
    if rates is None:
        return None
    return _panel("Learning rate", "The learning rate of each step, as scheduled.", rates, None, smooth=False)


def _gradient_norm(run: RunData) -> TrainingCurve | None:
    norms = _column(run.steps, "norm")
    if norms is None:
        return None
    explanation = "Steady is good; a spike is a step at which training was close to diverging."
    clip = run.config.clip if run.config else 0.0
    if not 0 < clip < 3 * norms[1].max():
        return _panel("Gradient norm", explanation, norms, None)
    explanation += f" Gradients were clipped to a norm of {clip:g}, the dashed line."
    return _panel("Gradient norm", explanation, norms, None, dashed_line=clip)


def _panel(
    title: str,
    explanation: str,
    training: Curve | None,
    validation: Curve | None,
    *,
    legend: LegendLocation = "upper right",
    as_percent: bool = False,
    smooth: bool = True,
    dashed_line: float | None = None,
) -> TrainingCurve:
    figure = canvas(WIDTH, HEIGHT)
    axes = figure.add_axes((56 / WIDTH, 44 / HEIGHT, 1 - 70 / WIDTH, 1 - 56 / HEIGHT))
    drawn = []
    if training is not None:
        drawn.append(_line(axes, *training, smooth=smooth))
    if validation is not None:
        size = 4 if len(validation[0]) < 40 else 0
        axes.plot(*validation, color=SECOND, linewidth=2, marker="o", markersize=size, label="validation")
        drawn.append(validation[1])
    if dashed_line is not None:
        axes.axhline(dashed_line, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        drawn.append(np.array([dashed_line]))
    _limit(axes, np.concatenate(drawn))
    if training is not None and validation is not None:
        axes.legend(loc=legend)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=TICK_STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS))
    as_text = (lambda value, _: f"{100 * value:.4g} %") if as_percent else (lambda value, _: f"{value:.6g}")
    axes.yaxis.set_major_formatter(FuncFormatter(as_text))
    name = title.lower().replace(" ", "-")
    return TrainingCurve(title, explanation, inline_svg(figure, name, f"{title} over the steps of training"))


def _line(axes: Axes, steps: Values, values: Values, *, smooth: bool) -> Values:
    """Draw a running mean over the values of single steps and return the values that have to fit on the axes."""
    groups = np.array_split(np.arange(len(steps)), min(len(steps), POINTS))
    middles, means = (np.array([row[group].mean() for group in groups]) for row in (steps, values))
    line = _running_mean(means, len(means) // 50) if smooth else means
    if smooth and len(values) > POINTS:
        lows, highs = (np.array([end(values[group]) for group in groups]) for end in (np.min, np.max))
        axes.fill_between(middles, lows, highs, color=ACCENT, alpha=0.25, linewidth=0)
    elif smooth:
        axes.plot(middles, means, color=ACCENT, alpha=0.3, linewidth=1)
    axes.plot(middles, line, color=ACCENT, linewidth=2, label="training")
    return np.concatenate([line, np.quantile(values, [0.01, 0.99])])  # quantiles: one outlier would flatten the rest


def _limit(axes: Axes, drawn: Values) -> None:
    low, high = drawn.min(), drawn.max()
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)


def _running_mean(values: Values, reach: int) -> Values:
    """Smooth over `reach` neighbours on either side with a Hann window, which is cut off at the ends."""
    if not reach:
        return values
    window = np.hanning(2 * reach + 3)
    return np.convolve(values, window, "same") / np.convolve(np.ones_like(values), window, "same")


def _column(rows: Sequence[JsonObject], name: str) -> Curve | None:
    """Return the finite values of one key and their steps, or None if there are none."""
    pairs = [(row["step"], row[name]) for row in rows if row.get(name) is not None and math.isfinite(row[name])]
    if not pairs:
        return None
    steps, values = np.array(pairs, dtype=np.float64).T
    return steps, values
