"""report.html: one file that needs nothing else, no network and no script, to be read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vitkit.atomic import write_text
from vitkit.data.sources.base import Split
from vitkit.evaluate.evaluation import Estimate, Evaluation
from vitkit.report import facts, figures, findings, pictures
from vitkit.report.curves import curves
from vitkit.report.record import NOT_RECORDED, Record, read_record
from vitkit.text import counted, duration, interval, mac_count, percent, short_number

FOLDED_FROM, WEAKEST, LISTED = 20, 12, 2_000  # classes: from how many on a table is folded, and how much stays open
PAIRS = 12
CONTENTS = {
    "decisions": "Decisions",
    "curves": "Training",
    "weakest": "Classes",
    "confusion": "Confusions",
    "reliability": "Confidence",
    "mistakes": "Mistakes",
    "views": "What it sees",
    "looks": "Where it looks",
    "rates": "Learning rates",
    "problems": "Problems",
    "record": "For the record",
    "use": "How to use it",
}  # a section by what fills it


@dataclass(frozen=True)
class Key:
    """One of the few numbers at the top."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Rate:
    lr: float
    score: float | None
    chosen: bool


def unbroken(text: str) -> str:
    """Return the text with no-break spaces."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def write_report(folder: Path, split: Split | None, looks: Sequence[pictures.Look] = ()) -> Path:
    """Draw a run folder's report.html.

    `split` is the scored one, for its pictures, None leaves them out; `looks` are what vitkit.inspect made of some.
    """
    record = read_record(folder)
    environment = Environment(
        loader=PackageLoader("vitkit.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": _percent, "whole_percent": _whole_percent, "breakable": _breakable}
    content = (
        _summary(record)
        | _training(record)
        | _evaluation(record.evaluation)
        | _pictures(record, split)
        | _for_the_record(record)
        | {"looks": [(one.key, pictures.embed(one.seen), pictures.embed(one.lit)) for one in looks]}
    )
    contents = [(anchor, title) for anchor, title in CONTENTS.items() if content.get(anchor, True)]
    page = environment.get_template("template.html").render(content, contents=contents)
    path = folder / "report.html"
    # file names need not be text; what cannot be written as UTF-8 is spelled out
    write_text(path, page.lstrip().encode("utf-8", "backslashreplace").decode("utf-8"))
    return path


def _percent(share: float | None) -> str:
    return unbroken(percent(share))


def _whole_percent(share: float) -> str:
    return unbroken(f"{100 * share:.0f} %")


def _breakable(name: str) -> Markup:
    """Long names of files and classes have no spaces; lines may break behind these instead."""
    return Markup("<wbr>").join(re.split(r"(?<=[_/\\.-])(?=.)", name))


def _summary(record: Record) -> dict[str, Any]:
    started = record.told("finished") or record.told("started")
    return {
        "subject": findings.subject(record),
        "result": findings.result(record),
        "story": _story(record),
        "keys": _keys(record),
        "date": str(started)[:10] if started else None,
        "problems": findings.problems(record),
    }


def _story(record: Record) -> str:
    """Two or three sentences: what was learned from, for how long, how sure the score is."""
    sentence = "Pre-trained" if record.pretrained else "Trained"
    if record.trained_pictures:
        sentence += f" on {counted(record.trained_pictures, 'picture')}"
    if record.steps_done:
        sentence += f" for {counted(record.steps_done, 'step')}"
    if record.told("seconds"):
        sentence += f" in {unbroken(duration(record.told('seconds')))}"
    if record.told("device"):
        sentence += f" on {record.told('device')}"
    story = f"{sentence}."
    if record.told("stopped_early"):
        story += (
            f" It stopped early; the weights of step {record.told('kept_step'):,}, the best on the dev pictures, "
            "were kept."
        )
    if record.evaluation is not None:
        story += (
            f" Measured on {counted(record.evaluation.pictures, 'picture')}, the score is known to within the "
            f"95 % interval in brackets, and for pictures like these only."
        )
    return story


def _keys(record: Record) -> list[Key]:
    found, keys = record.evaluation, []
    if found is not None:
        estimates = {
            "Mean average precision": found.mean_average_precision,
            "Top-1 accuracy": found.top1,
            "Top-5 accuracy": found.top5,
            "ImageNet-ReaL": found.real,
            "Macro-F1": found.macro_f1,
            "Balanced accuracy": found.balanced_accuracy,
        }
        keys += [_estimate(name, one) for name, one in estimates.items() if one is not None]
        if found.calibration_error is not None:
            keys.append(Key("Calibration error", percent(found.calibration_error), "0 is perfect"))
    elif losses := [row["loss"] for row in record.steps if row.get("loss") is not None]:
        last = losses[-max(len(losses) // 20, 1) :]
        keys.append(Key("Loss at the end", f"{sum(last) / len(last):.3g}", f"mean of {counted(len(last), 'step')}"))
    seconds = record.told("seconds")
    keys.append(Key("Training time", duration(seconds) if seconds else NOT_RECORDED, record.told("precision") or ""))
    keys.append(
        Key(
            "Parameters",
            short_number(record.parameters) if record.parameters else NOT_RECORDED,
            f"{mac_count(record.macs)} a picture" if record.macs else "",
        )
    )
    return keys


def _estimate(name: str, estimate: Estimate) -> Key:
    return Key(name, percent(estimate.value), interval(estimate.low, estimate.high))


def _training(record: Record) -> dict[str, Any]:
    decisions = [(str(name), str(text)) for name, text in record.told("decisions") or ()]
    reason = record.told("recipe_reason")
    if reason and not any(reason in text for _, text in decisions):
        decisions.append(("why", reason))
    counts = record.told("data", "counts", record.training_split) if record.training_split else None
    return {
        "decisions": decisions,
        "curves": curves(record),
        "rates": _rates(record),
        "counts": counts or {},
        "counted_in": record.training_split,
    }


def _rates(record: Record) -> list[Rate]:
    tried = record.told("learning_rates") or []
    scores = [(row["lr"], row.get("top1", row.get("map"))) for row in tried]
    taken = record.config.lr if record.config else None
    return [Rate(lr, score, lr == taken) for lr, score in scores]


def _evaluation(found: Evaluation | None) -> dict[str, Any]:
    rows = findings.weakest_first(found) if found else []
    opened = WEAKEST if len(rows) > FOLDED_FROM else len(rows)
    classes = len(found.confusion) if found else 0
    return {
        "multilabel": bool(found and found.multilabel),
        "weakest": rows[:opened],
        "stronger": rows[opened:LISTED],
        "unlisted": len(rows[LISTED:]),
        "confusion": figures.confusion(found) if found else None,
        "dense": classes > figures.LABELLED,
        "blocks": -(-classes // figures.BLOCKS),
        "pairs": findings.confusions(found, PAIRS) if found else [],
        "reliability": figures.reliability(found) if found else None,
        "verdict": _verdict(found) if found else None,
    }


def _verdict(found: Evaluation) -> str | None:
    excess = findings.overconfidence(found)
    if excess is None:
        return None
    if abs(excess) < 0.01:
        return "Here confidence and truth agree: on average they are less than one point apart."
    word = "too sure" if excess > 0 else "too modest"
    return (
        f"Here the model is {word}: its mean confidence is {100 * abs(excess):.1f} points "
        f"{'above' if excess > 0 else 'below'} the share of right answers."
    )


def _pictures(record: Record, split: Split | None) -> dict[str, Any]:
    if split is None or record.exact is None or record.architecture is None or not len(split):
        return {"mistakes": [], "views": [], "chain": ""}
    channels = record.architecture.channels
    mistakes = record.evaluation.mistakes if record.evaluation else ()
    return {
        "mistakes": pictures.worst(mistakes, split, record.exact, channels),
        "views": pictures.views(split, record.exact, channels),
        "chain": "; ".join(record.exact.describe()),
    }


def _for_the_record(record: Record) -> dict[str, Any]:
    run, quoted = str(record.folder), shlex.quote(str(record.folder))
    python = [
        ("model = vitkit.load(" + repr(run) + ")", "in evaluation mode"),
        ("model.metadata.labels", "class names, in the order of the logits"),
        ("model.metadata.preprocessing", "what pictures go through first"),
    ]
    shell = [
        (f"vitkit evaluate {quoted} DATA", "score it on other pictures"),
        (f"vitkit inspect {quoted} PICTURES", "look inside: attention by layer and head, and more"),
        (f"vitkit fit DATA --weights {quoted}", "go on from here with other pictures"),
    ]
    return {
        "cost": facts.cost(record),
        "origin": facts.origin(record),
        "verbatim": ("command", "fingerprint"),
        "settings": _without_places(record.settings),
        "use_python": "import vitkit\n\n" + _commented(python),
        "use_shell": _commented(shell[record.pretrained :]),
    }


def _without_places(settings: str) -> str:
    """A report is for others, and where somebody's pictures lie is not."""
    return re.sub(
        r'^(data|weights|out) = "(?:/|~|[A-Za-z]:)[^"]*?([^"/\\]+)[/\\]*"$',
        r'\1 = "…/\2"',
        settings,
        flags=re.MULTILINE,
    )


def _commented(lines: list[tuple[str, str]]) -> str:
    column = max(len(code) for code, _ in lines)
    return "\n".join(f"{code:<{column}}  # {comment}" for code, comment in lines)
