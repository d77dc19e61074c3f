"""The content of a run folder, from which the report and the model card are written.

Runs get interrupted and their folders outlive versions: what is missing in a folder is None or empty, never an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from vitkit.config import toml
from vitkit.config.objectives import OBJECTIVES
from vitkit.config.schema import Fit
from vitkit.cost import Cost, cost
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError, VitkitError
from vitkit.evaluate.evaluation import Evaluation
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation
from vitkit.model.base import Provenance
from vitkit.model.config import ModelConfig, from_dict
from vitkit.model.segmenter_config import SegmenterConfig
from vitkit.report.evaluation_file import read_evaluations
from vitkit.run_schema import RunJson, parse_metrics_line
from vitkit.stored_json import read_json

FILES = ("run.json", "config.toml", "model.json", "metrics.jsonl", "evaluation.json")
NOT_RECORDED = "not recorded"

JsonObject = Mapping[str, Any]


class _ModelFacts(TypedDict, total=False):
    """The part of model.json that reports show, all of which an older version may lack."""

    variant: str | None
    model: dict[str, Any]
    labels: list[str] | None
    preprocessing: dict[str, Any]
    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The files of a run folder, read and parsed."""

    folder: Path
    run_json: JsonObject
    model_json: JsonObject
    settings: str  # the text of config.toml
    config: Fit | None
    architecture: ModelConfig | None
    transform: EvalTransform | None  # the preprocessing that belongs to the weights
    evaluation: Evaluation | None
    segmentation: SegmentationEvaluation | None  # in place of the other, where the run was scored on masks
    steps: tuple[JsonObject, ...]  # lines of metrics.jsonl by kind, in the order of steps
    scores: tuple[JsonObject, ...]
    speeds: tuple[JsonObject, ...]
    rollbacks: tuple[JsonObject, ...]
    skipped_images: tuple[JsonObject, ...]
    unreadable_files: tuple[str, ...]  # files that exist but cannot be parsed

    def lookup(self, *keys: str) -> Any:
        """Return a nested value of run.json, or None: lookup("plan", "batch")."""
        value: Any = self.run_json
        for name in keys:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    @property
    def variant(self) -> str:
        return self.model_json.get("variant") or (self.config.model if self.config else None) or "a model"

    @property
    def data_name(self) -> str:
        """Return the data as the user named it."""
        scored = self.evaluation or self.segmentation
        evaluated = scored.data if scored else None
        return self.lookup("data", "name") or (self.config.data if self.config else None) or evaluated or "unnamed data"

    @property
    def data_title(self) -> str:
        """Return "photos" for "/home/me/photos/": where the images are stored is private."""
        name = self.data_name
        return name if name.startswith("hf:") else Path(name).name or name

    @property
    def pretrained(self) -> bool:
        """Return whether the run had no labels, so that there is nothing to evaluate."""
        objective = self.lookup("objective") or (self.config.objective if self.config else "labels")
        return objective not in OBJECTIVES or OBJECTIVES[objective].target == "none"

    @property
    def gives_masks(self) -> bool:
        return isinstance(self.architecture, SegmenterConfig) or self.segmentation is not None

    @property
    def scored_images(self) -> int | None:
        """Return the number of images that the score was measured on."""
        scored = self.evaluation or self.segmentation
        return scored.images if scored else None

    @property
    def scored_classes(self) -> tuple[str, ...]:
        scored = self.evaluation or self.segmentation
        return scored.classes if scored else ()

    @property
    def objective_title(self) -> str:
        """Return "masked patch prediction": what the model learned to predict."""
        name = self.lookup("objective") or (self.config.objective if self.config else "labels")
        return OBJECTIVES[name].title if name in OBJECTIVES else str(name)

    @property
    def trained_weights(self) -> str:
        """Return which weights the run trained, in words: a head on frozen features is not a fine-tuned model."""
        if self.lookup("head"):
            return "only the head was trained, on frozen features"
        if self.config is None or self.pretrained:
            return ""
        if self.config.freeze:
            return "the head was trained" if self.config.freeze == -1 else "the upper layers were trained"
        return "all weights were trained" if self.config.weights == "none" else "all weights were fine-tuned"

    @property
    def finished(self) -> bool:
        return self.lookup("finished") is not None

    @property
    def parameters(self) -> int | None:
        return self.lookup("parameters") or (self._cost.parameters if self._cost else None)

    @property
    def macs(self) -> int | None:
        return self.lookup("macs") or (self._cost.macs if self._cost else None)

    @property
    def _cost(self) -> Cost | None:
        try:
            return cost(self.architecture) if self.architecture else None
        except ConfigError:  # a kind of model that the calculator does not know
            return None

    @property
    def image_counts(self) -> Mapping[str, int]:
        """Return the number of images in each split."""
        return self.lookup("data", "pictures") or {}

    @property
    def training_split(self) -> str | None:
        return next((name for name in ("train", "trainval", "all") if name in self.image_counts), None)

    @property
    def trained_images(self) -> int | None:
        """Return the number of training images, fewer than the split has where some were held out."""
        if self.lookup("head", "images"):
            return self.lookup("head", "images")
        steps, batch, epochs = (self.lookup("plan", name) for name in ("steps", "batch", "epochs"))
        if steps and batch and epochs:
            return round(steps * batch / epochs)
        return self.image_counts[self.training_split] if self.training_split else None

    @property
    def steps_done(self) -> int | None:
        return self.steps[-1]["step"] if self.steps else None


def read_run_data(folder: Path) -> RunData:
    if not any((folder / name).is_file() for name in FILES):
        raise ConfigError(f"{folder} is not a run folder: it has none of its files.", files=", ".join(FILES))
    unreadable: list[str] = []
    model = _json(folder / "model.json", _ModelFacts, unreadable)
    architecture = _architecture(model, unreadable)
    evaluation, segmentation = read_evaluations(folder / "evaluation.json", unreadable)
    kinds = _metrics(folder / "metrics.jsonl")
    return RunData(
        folder=folder,
        run_json=_json(folder / "run.json", RunJson, unreadable),
        model_json=model,
        settings=_text(folder / "config.toml"),
        config=_config(folder / "config.toml", unreadable),
        architecture=architecture,
        transform=_transform(model, architecture),
        evaluation=evaluation,
        segmentation=segmentation,
        steps=_latest(kinds["step"]),
        scores=_latest(kinds["score"]),
        speeds=tuple(kinds["speed"]),
        rollbacks=tuple(kinds["rolled-back"]),
        skipped_images=tuple(kinds["left-out"]),
        unreadable_files=tuple(unreadable),
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _json(path: Path, kind: Any, unreadable: list[str]) -> JsonObject:
    if not path.is_file():
        return {}
    try:
        content: JsonObject = read_json(path, kind, most=toml.MOST_RECORD)
        return content
    except (OSError, VitkitError):
        unreadable.append(path.name)
        return {}


def _config(path: Path, unreadable: list[str]) -> Fit | None:
    if not path.is_file():
        return None
    try:
        return toml.from_tables(toml.read(path))
    except VitkitError:  # written by another version; the report still shows its text
        unreadable.append(path.name)
        return None


def _architecture(model: JsonObject, unreadable: list[str]) -> ModelConfig | None:
    if not model:
        return None
    try:
        return from_dict(model["model"])
    except (KeyError, VitkitError):
        unreadable.append("model.json")
        return None


def _transform(model: JsonObject, architecture: ModelConfig | None) -> EvalTransform | None:
    try:
        preprocessing = Preprocessing.from_record(model["preprocessing"])
    except (KeyError, VitkitError):
        return None
    return EvalTransform(image=architecture.image, preprocessing=preprocessing) if architecture else None


def _metrics(path: Path) -> dict[str, list[JsonObject]]:
    kinds: dict[str, list[JsonObject]] = {kind: [] for kind in ("step", "score", "speed", "rolled-back", "left-out")}
    for line in _text(path).split("\n"):
        try:
            row = parse_metrics_line(line, path.name, VitkitError)
        except VitkitError:  # the process was killed while it wrote the line
            continue
        if row["kind"] in kinds:
            kinds[row["kind"]].append(row)
    return kinds


def _latest(rows: list[JsonObject]) -> tuple[JsonObject, ...]:
    """Keep the last row of each step: steps are repeated after a rollback."""
    by_step = {row["step"]: row for row in rows}
    return tuple(by_step[step] for step in sorted(by_step))
