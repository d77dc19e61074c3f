"""grid.html: a comparison on one self-contained page, with its table, its figure and every run behind it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitkit.grid.arm import Trial
from vitkit.grid.comparison import ArmResult, Effect
from vitkit.grid.figure import score_figure
from vitkit.grid.grid_file import Grid
from vitkit.grid.outcome import Outcome
from vitkit.grid.statistics import Interval
from vitkit.pages.html import KeyFigure, write_html
from vitkit.text import counted, duration

PAGE = "grid.html"
MEASURE = "score on the test split, %"


def write_page(
    folder: Path,
    grid: Grid,
    rows: Sequence[ArmResult],
    found_effects: Sequence[Effect],
    outcomes: Mapping[Trial, Outcome],
    command: str,
) -> Path:
    """Write the page of a comparison and return its path."""
    best = max((row for row in rows if row.mean.count), key=lambda row: row.mean.mean, default=None)
    seconds = sum(outcome.seconds for outcome in outcomes.values())
    devices = sorted({outcome.device for outcome in outcomes.values() if outcome.device})
    content: dict[str, Any] = {
        "title": grid.title,
        "figures": [
            KeyFigure("Best mean", f"{best.mean.mean:.1f} %" if best else "–", best.arm.name if best else ""),
            KeyFigure("Runs", str(len(outcomes)), f"{len(grid.arms)} arms x {counted(len(grid.seeds), 'seed')}"),
            KeyFigure("Time", duration(seconds), ", ".join(devices)),
        ],
        "figure": score_figure(rows, MEASURE),
        "rows": [_row(row) for row in rows],
        "any_diverged": any(row.diverged for row in rows),
        "baseline": grid.baseline.name,
        "effects": [
            {
                "axis": one.axis,
                "value": one.value,
                "against": one.against,
                "difference": signed(one.difference),
                "word": one.word,
            }
            for one in found_effects
        ],
        "runs": [
            {
                "arm": trial.arm.name,
                "seed": trial.seed,
                "score": "diverged" if outcome.status == "diverged" else _number(outcome.score),
                "seconds": f"{outcome.seconds:.1f}",
                "report": f"{outcome.run.relative_to(folder)}/report.html" if outcome.status == "finished" else "",
                "name": outcome.run.name,
            }
            for trial, outcome in outcomes.items()
        ],
        "command": command,
    }
    return write_html(folder / PAGE, "vitkit.grid", PAGE, content)


def _row(row: ArmResult) -> dict[str, Any]:
    return {
        "name": row.arm.name,
        "mean": unsigned(row.mean),
        "difference": "" if row.difference is None else signed(row.difference),
        "word": row.word,
        "diverged": row.diverged,
        "seconds": f"{row.seconds:.1f}",
        "overhead": f"{100 * row.overhead:.0f} %",
    }


def signed(interval: Interval) -> str:
    """Return "+1.20 (+0.30 to +2.10)", or the mean alone where there is one seed."""
    if not interval.count:
        return "–"
    if interval.count == 1:
        return f"{interval.mean:+.2f}"
    return f"{interval.mean:+.2f} ({interval.low:+.2f} to {interval.high:+.2f})"


def unsigned(interval: Interval) -> str:
    """Return "61.20 (60.10 to 62.30)", or the mean alone where there is one seed."""
    if not interval.count:
        return "–"
    if interval.count == 1:
        return f"{interval.mean:.2f}"
    return f"{interval.mean:.2f} ({interval.low:.2f} to {interval.high:.2f})"


def _number(score: float | None) -> str:
    return "–" if score is None else f"{score:.2f}"
