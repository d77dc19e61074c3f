"""The whole story in two minutes, on pictures that are inside the package: check, pre-train, fit, score, report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, TextIO

from vitkit.config.resolve import resolve
from vitkit.data.check import check
from vitkit.data.report import contact_sheet, print_report
from vitkit.data.sources.fashion import NAME, SIDE
from vitkit.data.sources.open import open_data
from vitkit.evaluate.evaluation import Evaluation
from vitkit.progress import show_progress
from vitkit.run import begin, free_name
from vitkit.run_folder import EVALUATION, refuse_strangers
from vitkit.text import duration


def demo(out: Path | None, talk: TextIO) -> Path:
    """A folder with a contact sheet, a pre-trained model and a classifier; its name."""
    started = time.monotonic()
    folder = out or free_name(Path("runs/demo"))
    folder.mkdir(parents=True, exist_ok=True)
    refuse_strangers(folder)
    classifier, pretrained = folder / "classifier", folder / "pretrained"

    _heading(talk, "1 of 3", f"look at the data: vitkit check {NAME}")
    data = open_data(NAME)
    report = check(data, progress=show_progress)
    print_report(report, talk)
    sheet = folder / "check.png"
    contact_sheet(data, report, (SIDE, SIDE), "crop", 1).save(sheet)

    _heading(talk, "2 of 3", f"learn from the pictures alone: vitkit pretrain {NAME} --recipe demo_pretrain")
    _run({"recipe": "demo_pretrain", "out": str(pretrained)}, talk)

    _heading(talk, "3 of 3", f"learn the classes: vitkit fit {NAME} --recipe demo_fit --weights {pretrained}")
    _run({"recipe": "demo_fit", "weights": str(pretrained), "out": str(classifier)}, talk)

    evaluation = Evaluation.from_json((classifier / EVALUATION).read_text(encoding="utf-8"))
    _heading(talk, "done", f"in {duration(time.monotonic() - started)}")
    lines = {
        "accuracy": f"{evaluation.headline.value:.1%} of {evaluation.pictures:,} test pictures named rightly "
        f"(95 % interval {evaluation.headline.low:.1%} to {evaluation.headline.high:.1%})",
        "report": f"{classifier / 'report.html'}: open it in a browser",
        "pictures": f"{sheet}: what the model saw",
        "next": f"vitkit evaluate {classifier} {NAME}",
        "": "vitkit check YOUR_PHOTOS/      then: vitkit fit YOUR_PHOTOS/",
    }
    for name, text in lines.items():
        print(f"{name:<10} {text}", file=talk, flush=True)
    return folder


def _run(over: dict[str, Any], talk: TextIO) -> None:
    config, data, reason = resolve({"data": NAME, **over})
    begin(config, data, reason, talk, "vitkit demo")


def _heading(talk: TextIO, number: str, text: str) -> None:
    print(f"\n── {number}: {text}", file=talk, flush=True)
