"""The demo: check, pre-train, fit, score and report in a minute and a half, on images inside the package."""

import time
from pathlib import Path
from typing import Any, TextIO

from vitkit import messages
from vitkit.config.resolve import resolve
from vitkit.data.check import check
from vitkit.data.check_report import print_report, report_as_json
from vitkit.data.contact_sheet import contact_sheet
from vitkit.data.sources.fashion import NAME, SIDE
from vitkit.data.sources.open import open_data
from vitkit.evaluate.evaluation import Evaluation
from vitkit.messages import say
from vitkit.progress import show_progress
from vitkit.run import run_training, unused_path
from vitkit.run_folder import EVALUATION, require_empty
from vitkit.text import duration


def demo(out: Path | None, output: TextIO) -> Path:
    """Write a folder with a contact sheet, a pre-trained model and a classifier, and return its path."""
    started = time.monotonic()
    folder = out or unused_path(Path("runs/demo"))
    folder.mkdir(parents=True, exist_ok=True)
    require_empty(folder)
    classifier, pretrained = folder / "classifier", folder / "pretrained"

    _heading(output, "1 of 3", f"check the data: vitkit check {NAME}")
    data = open_data(NAME)
    report = check(data, progress=show_progress)
    if messages.in_json():
        say("check", report_as_json(report)["verdict"], file=output)
    elif not messages.is_quiet():
        print_report(report, output)
    sheet = folder / "check.png"
    contact_sheet(data, (SIDE, SIDE), "crop", 1).save(sheet)

    _heading(output, "2 of 3", f"pre-train on images without labels: vitkit pretrain {NAME} --recipe demo_pretrain")
    _run({"recipe": "demo_pretrain", "out": str(pretrained)}, output)

    _heading(output, "3 of 3", f"fit the classes: vitkit fit {NAME} --recipe demo_fit --weights {pretrained}")
    _run({"recipe": "demo_fit", "weights": str(pretrained), "out": str(classifier)}, output)

    evaluation = Evaluation.read(classifier / EVALUATION)
    _heading(output, "done", f"in {duration(time.monotonic() - started)}")
    lines = {
        "score": f"{evaluation.headline.value:.1%} of {evaluation.images:,} test images classified correctly "
        f"(95 % interval {evaluation.headline.low:.1%} to {evaluation.headline.high:.1%})",
        "report": f"{classifier / 'report.html'}: open it in a browser",
        "images": f"{sheet}: the model's input",
        "next": f"vitkit evaluate {classifier} {NAME}",
        "": "vitkit check YOUR_PHOTOS/      then: vitkit fit YOUR_PHOTOS/",
    }
    for label, text in lines.items():
        say(label, text, file=output)
    return folder


def _run(settings: dict[str, Any], output: TextIO) -> None:
    config, data, reason = resolve({"data": NAME, **settings})
    run_training(config, data, reason, output, "vitkit demo")


def _heading(output: TextIO, number: str, text: str) -> None:
    if messages.in_json():
        say(number, text, file=output)
    elif not messages.is_quiet():
        print(f"\n── {number}: {text}", file=output, flush=True)
