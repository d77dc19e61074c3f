"""Figures of several claims: scores by arm, and curves over a variable, with the paper's numbers beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from vitkit.grid.statistics import mean_interval
from vitkit.pages.svg import ACCENT, MUTED, SECOND, canvas, plot_text
from vitkit.paper.evidence import Evidence

WIDTH, ROW, FRAME = 640, 24, 64


def draw_scores(
    evidence: Evidence,
    measure: str,
    *,
    arms: Sequence[str] | None = None,
    paper: Mapping[str, float] | None = None,
) -> Figure:
    """Draw a row for each arm: a dot for each seed, the mean, its interval, and at the right the paper's number."""
    names = list(evidence.arms if arms is None else arms)
    height = FRAME + ROW * len(names)
    figure = canvas(WIDTH, height)
    axes = figure.subplots()
    for position, name in enumerate(names):
        scores = [*evidence.scores(name).values()]
        axes.plot(scores, [position] * len(scores), "o", color=MUTED, markersize=4, alpha=0.7)
        interval = mean_interval(scores)
        if math.isfinite(interval.low) and interval.high - interval.low < 100:
            axes.plot([interval.low, interval.high], [position, position], color=ACCENT, linewidth=2)
        if interval.count:
            axes.plot([interval.mean], [position], "o", color=ACCENT, markersize=6)
        if paper and name in paper:
            axes.text(
                1.02, position, f"{paper[name]:.1f}", transform=axes.get_yaxis_transform(), va="center", color=SECOND
            )
    if paper:
        axes.text(1.02, -0.9, "paper", transform=axes.get_yaxis_transform(), va="center", color=SECOND)
    axes.set_yticks(range(len(names)), [plot_text(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(measure)
    figure.subplots_adjust(left=0.3, right=0.88, top=1 - 20 / height, bottom=46 / height)
    return figure


def draw_curves(
    curves: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    across: str,
    up: str,
    logarithmic: bool = False,
) -> Figure:
    """Draw a line for each curve through the means over seeds, with their intervals as bars."""
    figure = canvas(WIDTH, 320)
    axes = figure.subplots()
    colours = [ACCENT, SECOND, MUTED, "#101010"]
    for number, (name, points) in enumerate(curves.items()):
        positions = sorted(points)
        intervals = [mean_interval(points[position]) for position in positions]
        kept = [(position, interval) for position, interval in zip(positions, intervals, strict=True) if interval.count]
        means = [interval.mean for _, interval in kept]
        errors = [
            interval.high - interval.mean
            if math.isfinite(interval.high) and interval.high - interval.low < 100
            else 0.0
            for _, interval in kept
        ]
        colour = colours[number % len(colours)]
        line = "-" if number < len(colours) else "--"
        axes.errorbar(
            [position for position, _ in kept],
            means,
            errors,
            color=colour,
            marker="o",
            markersize=5,
            capsize=3,
            linestyle=line,
            label=plot_text(name),
        )
    if logarithmic:
        axes.set_xscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    if len(curves) > 1:
        axes.legend()
    figure.subplots_adjust(left=0.1, right=0.97, top=0.95, bottom=0.17)
    return figure
