"""README.md of a run folder: the model card, with the front matter that the Hugging Face Hub reads.

It may be published, so it says what the model is and how good, and not where on a disk it was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from vitkit.atomic import write_text
from vitkit.evaluate.evaluation import Estimate, Evaluation
from vitkit.report import facts, findings
from vitkit.report.record import NOT_RECORDED, Record, read_record
from vitkit.text import counted, image_size, interval, percent
from vitkit.weights.public import DEFAULTS

CLASSES = 60  # named in the card; model.json has all
WEAKEST = 5
_MARKS = re.compile(r"([\\`*_\[\]<>|#$~&!])")  # what Markdown, its tables and HTML give a meaning to


def write_card(folder: Path) -> Path:
    """Write a run folder's README.md."""
    record = read_record(folder)
    sections = [
        _introduction(record),
        _scores(record),
        _use(record),
        _classes(record),
        _training(record),
        _limits(record),
        _licence(record),
    ]
    text = f"---\n{_front_matter(record)}\n---\n\n" + "\n\n".join(filter(None, sections)) + "\n"
    path = folder / "README.md"
    write_text(path, text.encode("utf-8", "backslashreplace").decode("utf-8"))
    return path


def plain(text: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _MARKS.sub(r"\\\1", " ".join(str(text).split()))


def _front_matter(record: Record) -> str:
    found = record.evaluation
    hub = record.data_name.removeprefix("hf:") if record.data_name.startswith("hf:") else None
    card = ModelCardData(
        license=_licence_name(record),
        library_name="vitkit",
        pipeline_tag="image-feature-extraction" if record.pretrained else "image-classification",
        tags=["vision", "vitkit", "masked-patch-prediction" if record.pretrained else "image-classification"],
        base_model=_base_model(record),
        datasets=[hub] if hub else None,
        metrics=[kind for kind, _, _ in _measures(found)] if found else None,
        model_name=findings.subject(record) if found else None,
        eval_results=_results(record, found, hub) if found else None,
    )
    return card.to_yaml()


def _results(record: Record, found: Evaluation, hub: str | None) -> list[EvalResult]:
    return [
        EvalResult(
            task_type="image-classification",
            task_name="Image classification",
            dataset_type=hub or "imagefolder",
            dataset_name=record.data_title,
            dataset_split=found.split,
            metric_type=kind,
            metric_name=name,
            metric_value=round(estimate.value, 6),
        )
        for kind, name, estimate in _measures(found)
    ]


def _measures(found: Evaluation) -> list[tuple[str, str, Estimate]]:
    """(the Hub's name, ours, the score), the main one first."""
    every = [
        ("accuracy", "top-1 accuracy", found.top1),
        ("map", "mean average precision", found.mean_average_precision),
        ("top_5_accuracy", "top-5 accuracy", found.top5),
        ("real_accuracy", "ImageNet-ReaL accuracy", found.real),
        ("f1", "macro-F1", found.macro_f1),
        ("balanced_accuracy", "balanced accuracy", found.balanced_accuracy),
    ]
    return [(kind, name, estimate) for kind, name, estimate in every if estimate is not None]


def _base_model(record: Record) -> str | None:
    weights = record.config.weights if record.config else ""
    if weights == "default" and record.config and record.config.model in DEFAULTS:
        return DEFAULTS[record.config.model].repository
    return weights.removeprefix("hf:") if weights.startswith("hf:") else None


def _licence_name(record: Record) -> str:
    return record.told("license") or (record.model.get("provenance") or {}).get("license") or "unknown"


def _introduction(record: Record) -> str:
    image = f" at {image_size(record.architecture.image)}" if record.architecture else ""
    what = "pre-trained on pictures without labels" if record.pretrained else "that sorts pictures into classes"
    return (
        f"# {plain(findings.subject(record))}\n\n"
        f"{plain(record.variant)}{image}, an image model {what}, trained with vitkit: "
        f"{plain(findings.result(record))}."
    )


def _scores(record: Record) -> str | None:
    found = record.evaluation
    if found is None:
        return None
    rows = [
        (name, percent(estimate.value), interval(estimate.low, estimate.high)) for _, name, estimate in _measures(found)
    ]
    if found.calibration_error is not None:
        rows.append(("calibration error", percent(found.calibration_error), ""))
    return (
        f"## Scores\n\nOn the {counted(found.pictures, 'picture')} of the {plain(found.split)} split of "
        f"{plain(record.data_title)}.\n\n" + _table(("measure", "score", "95 % interval"), rows)
    )


def _use(record: Record) -> str:
    run = "hf:OWNER/NAME"
    if record.pretrained:
        python = [f'model = vitkit.load("{run}")   # or this folder; the preprocessing comes with it']
        shell = []
    else:
        python = [
            f'classifier = vitkit.Classifier("{run}")   # or this folder; the preprocessing comes with it',
            'prediction = classifier("photo.jpg")   # or a list: paths, bytes, PIL images, arrays',
            "print(prediction.label, prediction.probability, prediction.top(3))",
            "",
            f'model = vitkit.load("{run}")   # the torch module itself',
        ]
        shell = [f"vitkit predict {run} photos/ --out answers.csv", f"vitkit evaluate {run} DATA"]
    shell.append(f"vitkit fit DATA --weights {run}")
    return "\n".join(
        ["## How to use it", "", "```python", "import vitkit", "", *python, "```", "", "```", *shell, "```"]
    )


def _classes(record: Record) -> str | None:
    names: Sequence[str] = record.model.get("labels") or (record.evaluation.classes if record.evaluation else ())
    if not names:
        return None
    more = f", and {len(names) - CLASSES:,} more in model.json" if len(names) > CLASSES else ""
    return f"## Classes\n\n{counted(len(names), 'class')}: {', '.join(map(plain, names[:CLASSES]))}{more}."


def _training(record: Record) -> str:
    counts = record.told("data", "pictures") or {}
    pictures = ", ".join(f"{count:,} {plain(name)}" for name, count in counts.items()) or NOT_RECORDED
    if record.told("split") and record.evaluation is not None and record.trained_pictures:
        pictures = f"{record.trained_pictures:,} to fit, {record.evaluation.pictures:,} set aside to score"
    versions = ", ".join(f"{name} {version}" for name, version in (record.told("versions") or {}).items())
    rows = [
        ("data", plain(record.data_title)),
        ("pictures", pictures),
        ("started from", plain(_start(record))),
        ("recipe", plain((record.config.recipe if record.config else "") or NOT_RECORDED)),
        ("steps", f"{record.told('kept_step') or record.steps_done:,}" if record.steps_done else NOT_RECORDED),
        *facts.cost(record),
        ("device", plain(record.told("device") or NOT_RECORDED)),
        ("preprocessing", plain("; ".join(record.exact.describe()) if record.exact else NOT_RECORDED)),
        ("versions", plain(versions or NOT_RECORDED)),
    ]
    return "## Training\n\n" + _table(("", ""), rows) + "\n\nconfig.toml holds every setting, report.html the curves."


def _start(record: Record) -> str:
    if record.config is None:
        return NOT_RECORDED
    if record.config.weights == "none":
        return "nothing, random weights"
    return _base_model(record) or Path(record.config.weights).name


def _limits(record: Record) -> str | None:
    sentences = _weaknesses(record, record.evaluation) if record.evaluation else []
    # how to resume is for whoever has the folder on their disk
    sentences += [plain(problem) for problem in findings.problems(record) if str(record.folder) not in problem]
    return "## Limits\n\n" + "\n".join(f"- {sentence}" for sentence in sentences) if sentences else None


def _weaknesses(record: Record, found: Evaluation) -> list[str]:
    sentences = [f"The scores hold for pictures like those of {plain(record.data_title)}; on others it may do worse."]
    weakest = [score for score in findings.weakest_first(found) if score.pictures][:WEAKEST]
    if weakest and not found.multilabel:
        sentences.append(
            "Weakest classes: "
            + ", ".join(f"{plain(score.name)} (recall {percent(score.recall)})" for score in weakest)
            + "."
        )
    pairs = findings.confusions(found, WEAKEST)
    if pairs:
        sentences.append(
            "Most often confused: "
            + ", ".join(
                f"{plain(pair.truth)} with {plain(pair.answer)} ({pair.count + pair.back} times)" for pair in pairs
            )
            + "."
        )
    return sentences


def _licence(record: Record) -> str:
    name = _licence_name(record)
    if name == "unknown":
        return "## Licence\n\nNone has been stated; that of the data and of the weights it started from may bind it."
    return f"## Licence\n\n{plain(name)}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
