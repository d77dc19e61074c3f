"""Figures of several claims: scores by arm, curves over a variable and frontiers over compute, beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitkit.grid.figure import score_limits
from vitkit.grid.statistics import Interval, mean_interval
from vitkit.pages.svg import ACCENT, MUTED, SECOND, canvas, plot_text
from vitkit.paper.evidence import Evidence

WIDTH, ROW, FRAME = 640, 24, 64
LETTER = 6.5  # pixels, on average
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


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
    by_arm = {name: [*evidence.scores(name).values()] for name in names}
    for position, name in enumerate(names):
        scores = by_arm[name]
        axes.plot(scores, [position] * len(scores), "o", color=MUTED, markersize=4, alpha=0.7)
        interval = mean_interval(scores)
        if math.isfinite(interval.low):
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
    if limits := score_limits([*by_arm.values()]):
        axes.set_xlim(limits)
    left = max(0.3, min(0.5, (20 + LETTER * max(map(len, names))) / WIDTH))
    figure.subplots_adjust(left=left, right=0.88, top=1 - 20 / height, bottom=46 / height)
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
        errors = [_half_width(interval) for _, interval in kept]
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
        _logarithmic(axes, [position for points in curves.values() for position in points])
    if limits := score_limits([scores for points in curves.values() for scores in points.values()]):
        axes.set_ylim(limits)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    if len(curves) > 1:
        axes.legend()
    figure.subplots_adjust(left=0.1, right=0.97, top=0.95, bottom=0.17)
    return figure


def draw_bars(
    evidence: Evidence, measure: str, *, arms: Sequence[str], paper: Mapping[str, float] | None = None
) -> Figure:
    """Draw a bar for each arm, up to the mean over seeds, with a dot for each seed; the paper's numbers above them."""
    figure = canvas(WIDTH, 320)
    axes = figure.subplots()
    for position, name in enumerate(arms):
        scores = [*evidence.scores(name).values()]
        interval = mean_interval(scores)
        if not interval.count:
            axes.text(position, 0, "no score", color=MUTED, ha="center", va="bottom")
            continue
        axes.bar([position], [interval.mean], 0.6, color=ACCENT, alpha=0.35)
        axes.errorbar([position], [interval.mean], [_half_width(interval)], color=ACCENT, capsize=3)
        axes.plot([position] * len(scores), scores, "o", color=MUTED, markersize=4, alpha=0.7)
    for name, number in (paper or {}).items():
        axes.text(
            arms.index(name),
            1.02,
            f"paper {number:.1f}",
            transform=axes.get_xaxis_transform(),
            ha="center",
            color=SECOND,
        )
    labels = [plot_text(name).replace(": ", ":\n").replace(", ", ",\n") for name in arms]
    axes.set_xticks(range(len(arms)), labels)
    axes.set_xlim(-0.6, len(arms) - 0.4)
    if limits := score_limits([[*evidence.scores(name).values()] for name in arms]):
        axes.set_ylim(0, limits[1])
    axes.set_ylabel(measure)
    figure.subplots_adjust(left=0.1, right=0.97, top=0.9, bottom=0.2)
    return figure


def draw_frontiers(
    points: Mapping[str, Mapping[float, Sequence[float]]],
    frontiers: Mapping[str, Sequence[float]],
    *,
    across: str,
    up: str,
) -> Figure:
    """Draw points of several families over a logarithmic axis, a marker for each family, a line along its frontier.

    points      family → position → scores over seeds
    frontiers   family → positions that the line goes through
    """
    figure = canvas(WIDTH, 340)
    axes = figure.subplots()
    for (family, scores), colour, marker in zip(points.items(), (ACCENT, SECOND, MUTED), "os^", strict=True):
        intervals = {position: mean_interval(values) for position, values in sorted(scores.items())}
        axes.errorbar(
            [*intervals],
            [interval.mean for interval in intervals.values()],
            [_half_width(interval) for interval in intervals.values()],
            color=colour,
            marker=marker,
            markersize=7,
            capsize=3,
            linestyle="none",
            label=plot_text(family),
        )
        line = [*frontiers[family]]
        axes.plot(line, [intervals[position].mean for position in line], color=colour, linewidth=1)
    _logarithmic(axes, [position for scores in points.values() for position in scores])
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    if limits := score_limits([values for scores in points.values() for values in scores.values()]):
        axes.set_ylim(limits)
    axes.legend()
    figure.subplots_adjust(left=0.1, right=0.97, top=0.95, bottom=0.17)
    return figure


def _half_width(interval: Interval) -> float:
    """Return half of an interval to draw; 0 for the whole line, that of a single seed."""
    return interval.high - interval.mean if math.isfinite(interval.high) else 0.0


def _logarithmic(axes: Axes, positions: Sequence[float]) -> None:
    """Make the lower axis logarithmic, with plain labels: TeX, which matplotlib writes there, is not interpreted."""
    axes.set_xscale("log")
    longest = max((len(_plain_number(position)) for position in positions), default=0)
    shown = _spread_out(sorted(set(positions)), max(0.08, 1.6 * LETTER * longest / WIDTH)) if positions else []
    axes.set_xticks(shown, [_plain_number(position) for position in shown])
    axes.set_xticks([], minor=True)


def _plain_number(value: float) -> str:
    """Return "0.0003", "25,000" or, from a thousand million on, "2.1·10⁹"."""
    if value < 1e9:
        return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
    digits, exponent = f"{value:.1e}".split("e")
    power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
    return power if float(digits) == 1 else f"{float(digits):g}·{power}"


def _spread_out(positions: Sequence[float], apart: float = 0.08) -> list[float]:
    """Return those of the sorted positions whose labels do not overlap on a logarithmic axis: the first and so on."""
    length = math.log(positions[-1] / positions[0]) or 1.0
    kept: list[float] = []
    for position in positions:
        if not kept or math.log(position / kept[-1]) / length >= apart:
            kept.append(position)
    return kept
