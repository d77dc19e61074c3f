"""report.html: one self-contained file about a run."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitkit.data.sources.dataset import Split
from vitkit.evaluate.evaluation import Evaluation
from vitkit.pages.html import KeyFigure, no_break, write_html
from vitkit.pages.inline_images import ImagePair
from vitkit.report import figures, sample_images, summary, tables, usage
from vitkit.report.curves import SCORES, training_curves
from vitkit.report.mask_samples import PredictMask
from vitkit.report.run_data import NOT_RECORDED, RunData, read_run_data
from vitkit.report.segmentation_sections import segmentation_key_figures, segmentation_sections
from vitkit.run_folder import REPORT
from vitkit.text import counted, duration, interval, mac_count, percent, short_number

FOLDED_FROM, WEAKEST, LISTED = 20, 12, 2_000  # classes: a longer table is folded after the weakest, and cut off
PAIRS = 12
CONTENTS = {
    "decisions": "Decisions",
    "curves": "Training",
    "weakest": "Classes",
    "confusion": "Confusions",
    "reliability": "Confidence",
    "class_scores": "Classes",
    "typical_masks": "Masks",
    "worst_masks": "Worst images",
    "class_confusions": "Confusions",
    "mistakes": "Mistakes",
    "preprocessing": "Preprocessing",
    "rollout": "Attention rollout",
    "learning_rates": "Learning rates",
    "problems": "Problems",
    "provenance": "Cost and provenance",
    "use": "How to use it",
}  # a section is shown if the content of the same name is not empty


def write_report(
    folder: Path,
    split: Split | None,
    rollout_overlays: Sequence[ImagePair] = (),
    predict_mask: PredictMask | None = None,
) -> Path:
    """Write the report.html of a run folder.

    `split` is the scored one, whose images are shown; None shows none. `rollout_overlays` come from vitkit.inspect.
    `predict_mask` computes the masks of a segmentation model, for the images that are shown; None shows none.
    """
    run = read_run_data(folder)
    content = (
        _summary(run)
        | _training(run)
        | _evaluation(run.evaluation)
        | segmentation_sections(run, split, predict_mask)
        | _sample_images(run, split)
        | _provenance(run)
        | {"rollout": rollout_overlays}
    )
    contents = [(anchor, title) for anchor, title in CONTENTS.items() if content.get(anchor, True)]
    return write_html(folder / REPORT, "vitkit.report", REPORT, content | {"contents": contents})


def _summary(run: RunData) -> dict[str, Any]:
    date = run.lookup("finished") or run.lookup("started")
    return {
        "title": summary.title(run),
        "headline": summary.headline(run),
        "introduction": _introduction(run),
        "figures": _key_figures(run),
        "date": str(date)[:10] if date else None,
        "problems": summary.problems(run),
    }


def _introduction(run: RunData) -> str:
    """Return two or three sentences: what the run trained on, for how long, and how certain the score is."""
    sentence = "Pre-trained" if run.pretrained else "Trained"
    if run.trained_images:
        sentence += f" on {counted(run.trained_images, 'image')}"
    if run.steps_done:
        sentence += f" for {counted(run.steps_done, 'step')}"
    if run.lookup("seconds"):
        sentence += f" in {no_break(duration(run.lookup('seconds')))}"
    if run.lookup("device"):
        sentence += f" on {run.lookup('device')}"
    text = f"{sentence}."
    if run.lookup("lost_best"):
        text += f" The model is not the best one: {run.lookup('lost_best')}."
    elif run.lookup("stopped_early"):
        step = run.lookup("kept_step")
        text += f" It stopped early and kept the weights of step {step:,}, which had the best validation score."
    if run.scored_images is not None:
        text += (
            f" The score was measured on {counted(run.scored_images, 'image')}; the brackets hold its 95 % "
            "interval. It is valid for images like these only."
        )
    return text


def _key_figures(run: RunData) -> list[KeyFigure]:
    evaluation, key_figures = run.evaluation, []
    if evaluation is not None:
        estimates = {
            "Mean average precision": evaluation.mean_average_precision,
            "Top-1 accuracy": evaluation.top1,
            "Top-5 accuracy": evaluation.top5,
            "ImageNet-ReaL": evaluation.real,
            "Macro-F1": evaluation.macro_f1,
            "Balanced accuracy": evaluation.balanced_accuracy,
        }
        key_figures += [
            KeyFigure(name, percent(estimate.value), interval(estimate.low, estimate.high))
            for name, estimate in estimates.items()
            if estimate is not None
        ]
        if evaluation.leaked is not None and (clean := evaluation.leaked.headline) is not None:
            number = f"{evaluation.leaked.others:,} images; {interval(clean.low, clean.high)}"
            key_figures.insert(1, KeyFigure("Without leaked images", percent(clean.value), number))
        if evaluation.calibration_error is not None:
            key_figures.append(KeyFigure("Calibration error", percent(evaluation.calibration_error), "0 is perfect"))
    elif run.segmentation is not None:
        key_figures += segmentation_key_figures(run.segmentation)
    elif losses := [row["loss"] for row in run.steps if row.get("loss") is not None]:
        last = losses[-max(len(losses) // 20, 1) :]
        mean = f"{sum(last) / len(last):.3g}"
        key_figures.append(KeyFigure("Loss at the end", mean, f"mean of {counted(len(last), 'step')}"))
    seconds, macs = run.lookup("seconds"), f"{mac_count(run.macs)} per image" if run.macs else ""
    time, parameters = duration(seconds) if seconds else "", short_number(run.parameters) if run.parameters else ""
    return [
        *key_figures,
        KeyFigure("Training time", time or NOT_RECORDED, run.lookup("precision") or ""),
        KeyFigure("Parameters", parameters or NOT_RECORDED, macs),
    ]


def _training(run: RunData) -> dict[str, Any]:
    decisions = [(str(name), str(text)) for name, text in run.lookup("decisions") or ()]
    reason = run.lookup("recipe_reason")
    if reason and not any(reason in text for _, text in decisions):
        decisions.append(("why", reason))
    counts = run.lookup("data", "counts", run.training_split) if run.training_split else None
    return {
        "decisions": decisions,
        "curves": training_curves(run),
        "learning_rates": _learning_rates(run),
        "default_rate": _default_rate(run),
        "counts": counts or {},
        "training_split": run.training_split,
    }


def _learning_rates(run: RunData) -> list[tuple[float, float | None, bool]]:
    """Return the learning rates that were tried, with their score and whether they were chosen."""
    chosen, rows = run.config.lr if run.config else None, run.lookup("learning_rates") or []
    return [(row["lr"], next((row[name] for name in SCORES if name in row), None), row["lr"] == chosen) for row in rows]


def _default_rate(run: RunData) -> str:
    """Return how far the best of the tried rates was ahead of the recipe's, where the recipe's was tried."""
    default = run.lookup("asked", "lr")
    scores = {row["lr"]: row["top1"] for row in run.lookup("learning_rates") or () if row.get("top1") is not None}
    if default not in scores:
        return ""
    lead = 100 * (max(scores.values()) - scores[default])
    if lead <= 0:
        return f"No rate was ahead of the recipe's own, {default:g}."
    return f"The best was {lead:.1f} points ahead of the recipe's own rate, {default:g}, on these images."


def _evaluation(evaluation: Evaluation | None) -> dict[str, Any]:
    rows = summary.weakest_first(evaluation) if evaluation else []
    weak = len(summary.weak_classes(evaluation)) if evaluation else 0
    opened = min(weak or WEAKEST, WEAKEST) if len(rows) > FOLDED_FROM else len(rows)
    classes = len(evaluation.confusion) if evaluation else 0
    return {
        "multilabel": bool(evaluation and evaluation.multilabel),
        "thresholds": any(row.threshold is not None for row in rows),
        "weakest": rows[:opened],
        "perfect": weak == 0,
        "stronger": rows[opened:LISTED],
        "unlisted": len(rows[LISTED:]),
        "confusion": figures.confusion_matrix(evaluation) if evaluation else None,
        "dense": classes > figures.LABELLED,
        "classes_per_row": -(-classes // figures.MAX_ROWS),
        "pairs": summary.most_confused(evaluation, PAIRS) if evaluation else [],
        "reliability": figures.reliability_diagram(evaluation) if evaluation else None,
        "verdict": _verdict(evaluation) if evaluation else None,
    }


def _verdict(evaluation: Evaluation) -> str | None:
    excess = summary.overconfidence(evaluation)
    if excess is None:
        return None
    if abs(excess) < 0.01:
        return "This model is well calibrated: its mean confidence is within one point of its accuracy."
    word, side = ("overconfident", "above") if excess > 0 else ("underconfident", "below")
    return f"This model is {word}: its mean confidence is {100 * abs(excess):.1f} points {side} its accuracy."


def _sample_images(run: RunData, split: Split | None) -> dict[str, Any]:
    # a segmentation model sees all of an image: its masks are shown instead of its input
    if split is None or run.gives_masks or run.transform is None or run.architecture is None or not len(split):
        return {"mistakes": [], "preprocessing": [], "transform": ""}
    channels = run.architecture.channels
    mistakes = run.evaluation.mistakes if run.evaluation else ()
    return {
        "mistakes": sample_images.worst_mistakes(mistakes, split, run.transform, channels),
        "preprocessing": sample_images.preprocessing_pairs(split, run.transform, channels),
        "transform": "; ".join(run.transform.describe()),
    }


def _provenance(run: RunData) -> dict[str, Any]:
    options = {"classifies": not run.pretrained, "masks": run.gives_masks}
    return {
        "cost": tables.cost_table(run),
        "provenance": tables.provenance_table(run),
        "settings": hide_paths(run.settings),
        "use_shell": usage.with_comments(usage.shell_commands(run.folder, **options)),
        "use_python": "import vitkit\n\n" + usage.with_comments(usage.python_lines(run.folder, **options)),
    }


def hide_paths(settings: str) -> str:
    """Shorten absolute paths: a report is shared, and where somebody stores their images is private."""
    return re.sub(
        r'^(data|weights|out) = "(?:/|~|[A-Za-z]:)[^"]*?([^"/\\]+)[/\\]*"$',
        r'\1 = "…/\2"',
        settings,
        flags=re.MULTILINE,
    )
