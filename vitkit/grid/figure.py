"""The figure of a comparison: a dot for each seed, the mean and its interval, arm by arm."""

import math
from collections.abc import Sequence

from markupsafe import Markup

from vitkit.grid.comparison import ArmResult
from vitkit.pages.svg import ACCENT, INK, MUTED, canvas, inline_svg, plot_style, plot_text

WIDTH, ROW, FRAME = 760, 26, 70
LONGEST_NAME = 48  # characters


def score_figure(rows: Sequence[ArmResult], measure: str) -> Markup:
    """Draw the scores of all arms, the first at the top."""
    with plot_style():
        figure = canvas(WIDTH, FRAME + ROW * len(rows))
        axes = figure.subplots()
        for position, row in enumerate(rows):
            axes.plot([*row.scores.values()], [position] * len(row.scores), "o", color=MUTED, markersize=4, alpha=0.7)
            interval = row.mean
            if math.isfinite(interval.low):
                axes.plot([interval.low, interval.high], [position, position], color=ACCENT, linewidth=2)
            if interval.count:
                axes.plot([interval.mean], [position], "o", color=ACCENT, markersize=7)
            elif row.diverged:
                axes.text(0.01, position, "diverged", transform=axes.get_yaxis_transform(), color=INK, va="center")
        axes.set_yticks(range(len(rows)), [_shortened(row.arm.name) for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(measure)
        scores = [score for row in rows for score in row.scores.values()]
        if scores:
            bounds = [bound for row in rows for bound in (row.mean.low, row.mean.high) if math.isfinite(bound)]
            spread = max(max(scores) - min(scores), 1.0)  # of two seeds, an interval can be hundreds of points wide
            axes.set_xlim(
                max(min([*scores, *bounds]) - 0.05 * spread, min(scores) - spread),
                min(max([*scores, *bounds]) + 0.05 * spread, max(scores) + spread),
            )
        figure.subplots_adjust(left=0.4, right=0.97, top=0.97, bottom=50 / (FRAME + ROW * len(rows)))
        description = f"{measure} of {len(rows)} arms, with 95 % intervals over seeds"
        return inline_svg(figure, "scores", description)


def _shortened(name: str) -> str:
    text = plot_text(name)
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"
