"""README.md of a run folder: the model card, with the front matter that the Hugging Face Hub reads.

It may be published, so it describes the model and its scores and names no path on disk.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from vitkit.atomic import write_text
from vitkit.data.subset import describe_subset
from vitkit.report import summary, tables
from vitkit.report.card_scores import CardScores, card_scores
from vitkit.report.markdown import escape, table
from vitkit.report.run_data import NOT_RECORDED, RunData, read_run_data
from vitkit.run_folder import CARD
from vitkit.text import counted, image_size, interval, percent, valid_utf8
from vitkit.weights.public import DEFAULTS

CLASSES = 60  # named in the card, at most; model.json has all


def write_card(folder: Path) -> Path:
    """Write a run folder's README.md."""
    run = read_run_data(folder)
    sections = [
        _introduction(run),
        _scores(run),
        _use(run),
        _classes(run),
        _training(run),
        _limits(run),
        _licence(run),
    ]
    text = f"---\n{_front_matter(run)}\n---\n\n" + "\n\n".join(filter(None, sections)) + "\n"
    write_text(folder / CARD, valid_utf8(text))
    return folder / CARD


def _front_matter(run: RunData) -> str:
    scores = card_scores(run)
    task = "image-segmentation" if run.gives_masks else "image-classification"
    hub = run.data_name.removeprefix("hf:") if run.data_name.startswith("hf:") else None
    card = ModelCardData(
        license=_licence_name(run),
        library_name="vitkit",
        pipeline_tag="image-feature-extraction" if run.pretrained else task,
        tags=["vision", "vitkit", run.objective_title.replace(" ", "-") if run.pretrained else task],
        base_model=_base_model(run),
        datasets=[hub] if hub else None,
        metrics=[kind for kind, _, _ in scores.metrics] if scores else None,
        model_name=summary.title(run) if scores else None,
        eval_results=_results(run, scores, hub) if scores else None,
    )
    return card.to_yaml()


def _results(run: RunData, scores: CardScores, hub: str | None) -> list[EvalResult]:
    return [
        EvalResult(
            task_type=scores.task,
            task_name=scores.task_title,
            dataset_type=hub or "imagefolder",
            dataset_name=run.data_title,
            dataset_split=scores.split,
            metric_type=kind,
            metric_name=name,
            metric_value=round(estimate.value, 6),
        )
        for kind, name, estimate in [*scores.metrics, *scores.without_leaked]
    ]


def _base_model(run: RunData) -> str | None:
    weights = run.config.weights if run.config else ""
    if weights == "default" and run.config and run.config.model in DEFAULTS:
        return DEFAULTS[run.config.model].repository
    return weights.removeprefix("hf:") if weights.startswith("hf:") else None


def _licence_name(run: RunData) -> str:
    return run.lookup("license") or (run.model_json.get("provenance") or {}).get("license") or "unknown"


def _introduction(run: RunData) -> str:
    image = f" at {image_size(run.architecture.image)}" if run.architecture else ""
    answers = "that gives every pixel a class" if run.gives_masks else "that classifies images"
    purpose = "pre-trained on images without labels" if run.pretrained else answers
    return (
        f"# {escape(summary.title(run))}\n\n"
        f"{escape(run.variant)}{image}, an image model {purpose}, trained with vitkit: "
        f"{escape(summary.headline(run))}."
    )


def _scores(run: RunData) -> str | None:
    scores = card_scores(run)
    if scores is None:
        return None
    rows = [
        (name, percent(estimate.value), interval(estimate.low, estimate.high))
        for _, name, estimate in [*scores.metrics, *scores.without_leaked]
    ]
    text = (
        f"## Scores\n\nOn the {counted(scores.images, 'image')} of the {escape(scores.split)} split of "
        f"{escape(run.data_title)}.\n\n" + table(("metric", "score", "95 % interval"), [*rows, *scores.further_rows])
    )
    return f"{text}\n\n{scores.class_table}" if scores.class_table else text


def _use(run: RunData) -> str:
    source = "hf:OWNER/NAME"
    if run.pretrained:
        python = [f'model = vitkit.load("{source}")   # or this folder; the preprocessing comes with it']
        shell = []
    elif run.gives_masks:
        python = [
            f'segmenter = vitkit.ImageSegmenter("{source}")   # or this folder; the preprocessing comes with it',
            'segmented = segmenter("photo.jpg")   # or a list: paths, bytes, PIL images, arrays',
            "print(segmented.shares)",
            'segmented.save("mask.png")   # segmented.mask is an array of class numbers',
        ]
        shell = [
            f"vitkit predict {source} photos/ --out masks/",
            f"vitkit serve {source}",
            f"vitkit export {source} --to onnx",
            f"vitkit evaluate {source} DATA",
        ]
    else:
        python = [
            f'classifier = vitkit.Classifier("{source}")   # or this folder; the preprocessing comes with it',
            'prediction = classifier("photo.jpg")   # or a list: paths, bytes, PIL images, arrays',
            "print(prediction.label, prediction.probability, prediction.top(3))",
            "",
            f'model = vitkit.load("{source}")   # the torch module itself',
        ]
        shell = [
            f"vitkit predict {source} photos/ --out predictions.csv",
            f"vitkit serve {source}",
            f"vitkit export {source} --to onnx",
            f"vitkit evaluate {source} DATA",
        ]
    shell.append(f"vitkit fit DATA --weights {source}")
    return "\n".join(
        ["## How to use it", "", "```python", "import vitkit", "", *python, "```", "", "```", *shell, "```"]
    )


def _classes(run: RunData) -> str | None:
    names: Sequence[str] = run.model_json.get("labels") or run.scored_classes
    if not names:
        return None
    more = f", and {len(names) - CLASSES:,} more in model.json" if len(names) > CLASSES else ""
    return f"## Classes\n\n{counted(len(names), 'class')}: {', '.join(map(escape, names[:CLASSES]))}{more}."


def _training(run: RunData) -> str:
    images = ", ".join(f"{count:,} {escape(name)}" for name, count in run.image_counts.items()) or NOT_RECORDED
    if run.lookup("split") and run.scored_images is not None and run.trained_images:
        images = f"{run.trained_images:,} for training, {run.scored_images:,} held out for scoring"
    if subset := run.lookup("subset"):
        images += f"; {escape(describe_subset(subset))}"
    versions = ", ".join(f"{name} {version}" for name, version in (run.lookup("versions") or {}).items())
    rows = [
        ("data", escape(run.data_title)),
        ("images", images),
        ("started from", escape(_start(run))),
        ("trained weights", escape(run.trained_weights or NOT_RECORDED)),
        ("recipe", escape((run.config.recipe if run.config else "") or NOT_RECORDED)),
        *(
            [("steps", f"{run.lookup('kept_step') or run.steps_done:,}" if run.steps_done else NOT_RECORDED)]
            if not run.lookup("head")
            else []
        ),
        *tables.cost_table(run),
        ("device", escape(run.lookup("device") or NOT_RECORDED)),
        ("preprocessing", escape("; ".join(run.transform.describe()) if run.transform else NOT_RECORDED)),
        ("versions", escape(versions or NOT_RECORDED)),
    ]
    curves = ", report.html the curves" if run.steps else ""
    return "## Training\n\n" + table(("", ""), rows) + f"\n\nconfig.toml holds every setting{curves}."


def _start(run: RunData) -> str:
    if run.config is None:
        return NOT_RECORDED
    if run.config.weights == "none":
        return "random weights"
    name, title = _base_model(run) or Path(run.config.weights).name, _initial_weights(run).get("title")
    return f"{name} ({title})" if title else name


def _initial_weights(run: RunData) -> Mapping[str, Any]:
    """Return the provenance of the weights that the run started from, as far as they carried one."""
    before = (run.model_json.get("provenance") or {}).get("before")
    return before if isinstance(before, Mapping) else {}


def _limits(run: RunData) -> str | None:
    sentences = []
    if scores := card_scores(run):
        sentences = [f"The scores hold for images like those of {escape(run.data_title)}; others may score lower."]
        sentences += scores.weaknesses
    # how to resume concerns only those who have the folder
    sentences += [escape(problem) for problem in summary.problems(run) if str(run.folder) not in problem]
    return "## Limits\n\n" + "\n".join(f"- {sentence}" for sentence in sentences) if sentences else None


def _licence(run: RunData) -> str:
    name = _licence_name(run)
    if name == "unknown":
        initial = _initial_weights(run).get("license")
        weights = f"the initial weights ({escape(initial)})" if initial else "the initial weights"
        return f"## Licence\n\nNot stated; the licences of the data and of {weights} may apply."
    return f"## Licence\n\n{escape(name)}"
