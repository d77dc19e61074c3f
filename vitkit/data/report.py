"""What a check found, for people: a short text, and a contact sheet to look at."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict
from typing import Any, TextIO

import numpy as np
from PIL import Image

from vitkit.data.check import Report
from vitkit.data.decode import decode
from vitkit.data.preprocessing import Preprocessing, Resize
from vitkit.data.sheet import draw_sheet
from vitkit.data.sources.base import Data, DataError, Split
from vitkit.data.transforms import Exact
from vitkit.errors import DecodeError
from vitkit.text import counted

ROWS, COLUMNS = 12, 8  # of the contact sheet
SHOWN = 10  # bad files, copies and leaks named in the text; --json has all of them


def print_report(report: Report, talk: TextIO | None = None) -> None:
    """One line per thing that was looked at, then what would hurt."""
    with contextlib.redirect_stdout(talk or sys.stdout):
        _print(report)


def _print(report: Report) -> None:
    _line(
        "data",
        f"{report.name}: {report.kind}"
        + (f", {counted(len(report.classes), 'class')}" if report.classes else ", unlabelled")
        + (", multi-label: any number of them to a picture" if report.multilabel else ""),
    )
    _line("pictures", ", ".join(f"{count:,} {name}" for name, count in report.pictures.items()))
    if report.sizes:
        low, middle, high = (" x ".join(map(str, report.sizes[which])) for which in ("smallest", "median", "largest"))
        _line("sizes", f"{low} to {high}, median {middle} (height x width)")
    if report.odd:
        _line("stored", ", ".join(f"{count:,} {what}" for what, count in report.odd.items()) + "; all are read rightly")
    for name, counts in report.per_class.items():
        present = [count for count in counts.values() if count] or [0]
        missing = sum(not count for count in counts.values())
        absent = f", {counted(missing, 'class')} absent" if missing else ""
        _line(
            "classes" if name == next(iter(report.per_class)) else "",
            f"{name}: {_span(min(present), max(present))} pictures each{absent}",
        )
    _list("bad", [f"{key}: {reason}" for key, reason in report.bad])
    _list("conflicts", [f"{one} = {other}" for one, other in report.conflicts])
    _list("leaks", [f"{one} = {other} ({how})" for one, other, how in report.leaks])
    _list("copies", [" = ".join(group) for group in report.duplicates])
    _list("note", report.remarks)
    _list("hurts", report.problems)
    if not report.problems:
        _line(
            "verdict",
            "nothing here would hurt " + ("training" if report.classes else "pre-training; there are no labels to fit"),
        )


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def report_as_json(report: Report) -> dict[str, Any]:
    fine = "fine" if report.classes else "fine for pre-training, no labels to fit"
    return {**asdict(report), "verdict": "would hurt training" if report.problems else fine}


def contact_sheet(data: Data, report: Report, image: tuple[int, int], resize: Resize, channels: int) -> Image.Image:
    """Pictures of each class as a model will see them, after the exact chain's crop or squash."""
    exact = Exact(image=image, preprocessing=Preprocessing(resize=resize))
    split = data.splits[next(iter(data.splits))]
    rows = []
    for name, members in _classes(data, split):
        chosen = members[np.linspace(0, len(members) - 1, min(COLUMNS, len(members))).astype(int)]
        views = [_view(split, int(index), exact, channels) for index in chosen]
        rows.append((f"{name}  ({len(members):,})", [view for view in views if view is not None]))
    shown = f"the first {ROWS} of {len(data.classes)} classes, " if len(data.classes) > ROWS else ""
    return draw_sheet(f"{report.name}: what the model will see", f"{shown}{'; '.join(exact.describe()[:1])}", rows)


def _classes(data: Data, split: Split) -> list[tuple[str, np.ndarray]]:
    if not data.classes:
        everything = np.arange(len(split))
        return [("unlabelled", part) for part in np.array_split(everything, ROWS) if len(part)]
    members = [
        np.flatnonzero(split.labels[:, index] if split.labels.ndim == 2 else split.labels == index)
        for index in range(min(len(data.classes), ROWS))
    ]
    return [(name, found) for name, found in zip(data.classes, members, strict=False) if len(found)]


def _view(split: Split, index: int, exact: Exact, channels: int) -> np.ndarray | None:
    try:
        framed = exact.frame(decode(split.read(index), channels=channels))
    except (DecodeError, DataError):
        return None
    return framed.round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


def _line(name: str, text: str) -> None:
    print(f"{name:<10} {text}")


def _list(name: str, texts: list[str]) -> None:
    for number, text in enumerate(texts[:SHOWN]):
        _line(name if number == 0 else "", text)
    if len(texts) > SHOWN:
        _line("", f"… and {len(texts) - SHOWN:,} more; --json has all of them")
