"""How training went, as small panels: loss, score, learning rate and length of the gradient over the steps.

Each is drawn at about the width of a phone, and set side by side on a desk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from vitkit.pages.svg import ACCENT, MUTED, SECOND, canvas, drawing, inline
from vitkit.report.record import Record, Row

WIDTH, HEIGHT = 400, 240
POINTS = 240  # of a curve: more would only make the file larger
ROUND = [1, 2, 2.5, 5, 10]  # between ticks

Numbers = NDArray[np.float64]
Curve = tuple[Numbers, Numbers]  # steps, values
Place = Literal["upper right", "lower right"]  # of the legend, out of the way of curves that fall or rise


@dataclass(frozen=True)
class Drawing:
    title: str
    reading: str  # how to read it
    svg: Markup


def curves(record: Record) -> list[Drawing]:
    with drawing():
        drawn = [_loss(record), _score(record), _rate(record), _norm(record)]
    return [one for one in drawn if one is not None]


def _loss(record: Record) -> Drawing | None:
    trained, looked = _column(record.steps, "loss"), _column(record.scores, "loss")
    if trained is None and looked is None:
        return None
    reading = "Lower is better. The line is a running mean, the shade behind it the spread of single steps."
    if looked is not None:
        reading += " Dev loss that climbs while training loss still falls means that pictures are learned by heart."
    return _panel("Loss", reading, trained, looked, place="upper right")


def _score(record: Record) -> Drawing | None:
    name = next((name for name in ("top1", "map") if any(name in row for row in record.scores)), None)
    trained, looked = _column(record.steps, "accuracy"), _column(record.scores, name or "top1")
    if trained is None and looked is None:
        return None
    title = "Mean average precision" if name == "map" else "Accuracy"
    reading = "Higher is better."
    if looked is not None:
        reading += " Dev pictures are never trained on."
    if trained is not None:
        reading += " Training pictures are cropped and altered at random, which makes them harder."
    return _panel(title, reading, trained, looked, place="lower right", share=True)


def _rate(record: Record) -> Drawing | None:
    rates = _column(record.steps, "lr")
    if rates is None:
        return None
    return _panel(
        "Learning rate", "How large a step each update took, as the schedule planned it.", rates, None, smooth=False
    )


def _norm(record: Record) -> Drawing | None:
    norms = _column(record.steps, "norm")
    if norms is None:
        return None
    reading = "Calm is good; spikes are updates on which training nearly stumbled."
    clip = record.config.clip if record.config else 0.0
    if not 0 < clip < 3 * norms[1].max():
        return _panel("Length of the gradient", reading, norms, None)
    reading += f" Gradients longer than {clip:g}, the dashed line, were shortened to it."
    return _panel("Length of the gradient", reading, norms, None, mark=clip)


def _panel(
    title: str,
    reading: str,
    trained: Curve | None,
    looked: Curve | None,
    *,
    place: Place = "upper right",
    share: bool = False,
    smooth: bool = True,
    mark: float | None = None,
) -> Drawing:
    figure = canvas(WIDTH, HEIGHT)
    axes = figure.add_axes((56 / WIDTH, 44 / HEIGHT, 1 - 70 / WIDTH, 1 - 56 / HEIGHT))
    drawn = []
    if trained is not None:
        drawn.append(_line(axes, *trained, smooth=smooth))
    if looked is not None:
        axes.plot(
            *looked, color=SECOND, linewidth=2, marker="o", markersize=4 if len(looked[0]) < 40 else 0, label="dev"
        )
        drawn.append(looked[1])
    if mark is not None:
        axes.axhline(mark, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
        drawn.append(np.array([mark]))
    _limit(axes, np.concatenate(drawn))
    if trained is not None and looked is not None:
        axes.legend(loc=place)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=ROUND))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %" if share else f"{value:.6g}"))
    name = title.lower().replace(" ", "-")
    return Drawing(title, reading, inline(figure, name, f"{title} over the steps of training"))


def _line(axes: Axes, steps: Numbers, values: Numbers, *, smooth: bool) -> Numbers:
    """Draws a running mean in front of what single steps had; returns what the axes should leave room for."""
    groups = np.array_split(np.arange(len(steps)), min(len(steps), POINTS))
    middles, means = (np.array([row[group].mean() for group in groups]) for row in (steps, values))
    line = _running_mean(means, len(means) // 50) if smooth else means
    if smooth and len(values) > POINTS:
        lows, highs = (np.array([end(values[group]) for group in groups]) for end in (np.min, np.max))
        axes.fill_between(middles, lows, highs, color=ACCENT, alpha=0.25, linewidth=0)
    elif smooth:
        axes.plot(middles, means, color=ACCENT, alpha=0.3, linewidth=1)
    axes.plot(middles, line, color=ACCENT, linewidth=2, label="training")
    return np.concatenate([line, np.quantile(values, [0.01, 0.99])])  # a single leap would press the rest flat


def _limit(axes: Axes, drawn: Numbers) -> None:
    low, high = drawn.min(), drawn.max()
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)


def _running_mean(values: Numbers, reach: int) -> Numbers:
    """Over `reach` neighbours on either side, the nearer the weightier; fewer at the ends."""
    if not reach:
        return values
    window = np.hanning(2 * reach + 3)
    return np.convolve(values, window, "same") / np.convolve(np.ones_like(values), window, "same")


def _column(rows: Sequence[Row], name: str) -> Curve | None:
    """Of the rows that have it; what is not finite has no place on paper."""
    pairs = [(row["step"], row[name]) for row in rows if row.get(name) is not None and math.isfinite(row[name])]
    if not pairs:
        return None
    steps, values = np.array(pairs, dtype=np.float64).T
    return steps, values
