"""A run folder as one record: what the report and the model card are written from.

Runs get interrupted and their folders outlive versions: what a folder does not tell is None or empty, never an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.config import toml
from vitkit.config.schema import Fit
from vitkit.cost import cost
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.transforms import Exact
from vitkit.errors import ConfigError, VitkitError
from vitkit.evaluate.evaluation import Evaluation
from vitkit.model.config import ModelConfig, from_dict

FILES = ("run.json", "config.toml", "model.json", "metrics.jsonl", "evaluation.json")
NOT_RECORDED = "not recorded"

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Record:
    folder: Path
    run: Row  # run.json
    model: Row  # model.json
    settings: str  # config.toml as it is written
    config: Fit | None
    architecture: ModelConfig | None
    exact: Exact | None  # the preprocessing that belongs to the weights
    evaluation: Evaluation | None
    steps: tuple[Row, ...]  # lines of metrics.jsonl by kind, in the order of steps
    scores: tuple[Row, ...]
    speeds: tuple[Row, ...]
    rolled_back: tuple[Row, ...]
    left_out: tuple[Row, ...]
    unreadable: tuple[str, ...]  # files that are there and cannot be used

    def told(self, *path: str) -> Any:
        """told("plan", "batch") → run.json's value, or None where it has none."""
        value: Any = self.run
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    @property
    def variant(self) -> str:
        return self.model.get("variant") or (self.config.model if self.config else None) or "a model"

    @property
    def data_name(self) -> str:
        """As the user wrote it."""
        evaluated = self.evaluation.data if self.evaluation else None
        return self.told("data", "name") or (self.config.data if self.config else None) or evaluated or "unnamed data"

    @property
    def data_title(self) -> str:
        """ "/home/me/photos/" → "photos": where pictures lie is nobody's business but the user's."""
        name = self.data_name
        return name if name.startswith("hf:") else Path(name).name or name

    @property
    def pretrained(self) -> bool:
        """Without labels, so that there is nothing to evaluate."""
        return (self.told("objective") or (self.config.objective if self.config else "labels")) == "masked-patch"

    @property
    def finished(self) -> bool:
        return self.told("finished") is not None

    @property
    def parameters(self) -> int | None:
        return self.told("parameters") or (cost(self.architecture).parameters if self.architecture else None)

    @property
    def macs(self) -> int | None:
        return self.told("macs") or (cost(self.architecture).macs if self.architecture else None)

    @property
    def training_split(self) -> str | None:
        counted = self.told("data", "pictures") or {}
        return next((name for name in ("train", "trainval", "all") if name in counted), None)

    @property
    def trained_pictures(self) -> int | None:
        """Those that training has seen, less than the split has where some were set aside."""
        steps, batch, epochs = (self.told("plan", name) for name in ("steps", "batch", "epochs"))
        if steps and batch and epochs:
            return round(steps * batch / epochs)
        return self.told("data", "pictures", self.training_split) if self.training_split else None

    @property
    def steps_done(self) -> int | None:
        return self.steps[-1]["step"] if self.steps else None


def read_record(folder: Path) -> Record:
    if not any((folder / name).is_file() for name in FILES):
        raise ConfigError(f"{folder} is no run folder.", looked_for=", ".join(FILES))
    unreadable: list[str] = []
    model = _json(folder / "model.json", unreadable)
    architecture = _architecture(model, unreadable)
    kinds = _metrics(folder / "metrics.jsonl")
    return Record(
        folder=folder,
        run=_json(folder / "run.json", unreadable),
        model=model,
        settings=_text(folder / "config.toml"),
        config=_config(folder / "config.toml", unreadable),
        architecture=architecture,
        exact=_exact(model, architecture),
        evaluation=_evaluation(folder / "evaluation.json", unreadable),
        steps=_latest(kinds["step"]),
        scores=_latest(kinds["score"]),
        speeds=tuple(kinds["speed"]),
        rolled_back=tuple(kinds["rolled-back"]),
        left_out=tuple(kinds["left-out"]),
        unreadable=tuple(unreadable),
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _json(path: Path, unreadable: list[str]) -> Row:
    if not path.is_file():
        return {}
    try:
        content = json.loads(_text(path))
    except ValueError:
        content = None
    if isinstance(content, dict):
        return content
    unreadable.append(path.name)
    return {}


def _config(path: Path, unreadable: list[str]) -> Fit | None:
    if not path.is_file():
        return None
    try:
        return toml.from_tables(toml.read(path))
    except VitkitError:  # written by another version; its text is shown all the same
        unreadable.append(path.name)
        return None


def _architecture(model: Row, unreadable: list[str]) -> ModelConfig | None:
    if not model:
        return None
    try:
        return from_dict(model["model"])
    except (KeyError, TypeError, AttributeError, ValueError):
        unreadable.append("model.json")
        return None


def _exact(model: Row, architecture: ModelConfig | None) -> Exact | None:
    try:
        how = Preprocessing.from_record(model["preprocessing"])
    except (KeyError, VitkitError):
        return None
    return Exact(image=architecture.image, preprocessing=how) if architecture else None


def _evaluation(path: Path, unreadable: list[str]) -> Evaluation | None:
    if not path.is_file():
        return None
    try:
        return Evaluation.from_json(_text(path))
    except (KeyError, TypeError, ValueError):
        unreadable.append(path.name)
        return None


def _metrics(path: Path) -> dict[str, list[Row]]:
    kinds: dict[str, list[Row]] = {kind: [] for kind in ("step", "score", "speed", "rolled-back", "left-out")}
    for line in _text(path).split("\n"):
        try:
            row = json.loads(line)
        except ValueError:  # a kill in the middle of a line
            continue
        if isinstance(row, dict) and "step" in row and row.get("kind") in kinds:
            kinds[row["kind"]].append(row)
    return kinds


def _latest(rows: list[Row]) -> tuple[Row, ...]:
    """A step that was run again after a rollback counts as it went the last time."""
    by_step = {row["step"]: row for row in rows}
    return tuple(by_step[step] for step in sorted(by_step))
