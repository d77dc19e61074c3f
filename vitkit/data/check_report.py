"""The result of `vitkit check` as text and as JSON."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TextIO

from vitkit.data.check import DataReport
from vitkit.data.mask_check import MaskReport, cover_lines
from vitkit.messages import print_line
from vitkit.text import counted

SHOWN = 10  # bad files, duplicates and leaks listed in the text; --json has all of them


def print_report(report: DataReport, file: TextIO | None = None) -> None:
    """Print the facts, a line each, then the problems."""
    with contextlib.redirect_stdout(file or sys.stdout):
        _print(report)


def _print(report: DataReport) -> None:
    _line(
        "data",
        f"{report.name}: {report.kind}"
        + (f", {counted(len(report.classes), 'class')}" if report.classes else ", unlabelled")
        + (" of pixels: segmentation" if report.task == "segment" else "")
        + (", multi-label: any number of them per image" if report.multilabel else ""),
    )
    _line("images", ", ".join(f"{count:,} {name}" for name, count in report.images.items()))
    if report.sizes:
        low, middle, high = (" x ".join(map(str, report.sizes[which])) for which in ("smallest", "median", "largest"))
        _line("sizes", f"{low} to {high}, median {middle} (height x width)")
    if report.odd:
        modes = ", ".join(f"{count:,} {mode}" for mode, count in report.odd.items())
        _line("stored", f"{modes}; all are read correctly")
    for name, counts in report.per_class.items():
        present = [count for count in counts.values() if count] or [0]
        missing = sum(not count for count in counts.values())
        absent = f", {counted(missing, 'class')} absent" if missing else ""
        _line(
            "classes" if name == next(iter(report.per_class)) else "",
            f"{name}: {_span(min(present), max(present))} images each{absent}",
        )
    if report.masks is not None:
        _cover(report.masks, report.classes)
    _list("bad", [f"{key}: {reason}" for key, reason in report.bad])
    if report.masks is not None:
        _list("bad masks", [f"{key}: {reason}" for key, reason in report.masks.bad])
    _list("conflicts", [f"{one} = {other}" for one, other in report.conflicts])
    _list("leaks", [f"{one} = {other} ({similarity})" for one, other, similarity in report.leaks])
    _list("duplicates", [" = ".join(group) for group in report.duplicates])
    _list("similar", [f"{one} = {other} (nearly identical)" for one, other in report.near_duplicates])
    _list("note", report.remarks)
    _list("problem", report.problems)
    if not report.problems:
        _line(
            "verdict",
            "nothing here would hurt " + ("training" if report.classes else "pre-training; there are no labels to fit"),
        )


def _cover(masks: MaskReport, classes: Sequence[str]) -> None:
    for number, text in enumerate(cover_lines(masks, classes)):
        _line("" if number else "classes", text)


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def report_as_json(report: DataReport) -> dict[str, Any]:
    fine = "fine" if report.classes else "fine for pre-training, no labels to fit"
    return {**asdict(report), "verdict": "would hurt training" if report.problems else fine}


def _line(name: str, text: str) -> None:
    print_line(f"{name:<10} {text}")


def _list(name: str, texts: list[str]) -> None:
    for number, text in enumerate(texts[:SHOWN]):
        _line(name if number == 0 else "", text)
    if len(texts) > SHOWN:
        _line("", f"… and {len(texts) - SHOWN:,} more; --json has all of them")
