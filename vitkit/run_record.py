"""The record of a run: its settings, its training log, its score and its report, as plain data."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from vitkit.config import toml
from vitkit.config.objectives import OBJECTIVES
from vitkit.evaluate.evaluation import Evaluation
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation, read_evaluation
from vitkit.model.config import ModelConfig, from_dict
from vitkit.model.variants import name_of
from vitkit.run_folder import EVALUATION, MODEL, REPORT, RunError, RunFolder
from vitkit.stored_json import read_json
from vitkit.text import counted, image_size
from vitkit.weights.native import ModelRecord


class RunRecord(os.PathLike[str]):
    """The record in a run folder; weights that are not in one have none, and asking for it is an error."""

    def __init__(self, source: str):
        self.source = source

    @property
    def path(self) -> Path:
        return Path(self.source).expanduser()

    @property
    def report(self) -> Path:
        """The path of report.html."""
        return self._folder.path / REPORT

    @property
    def config(self) -> dict[str, Any]:
        """The settings as a dictionary, with the names of config.toml."""
        return toml.to_tables(self._folder.config())

    @property
    def evaluation(self) -> Evaluation | SegmentationEvaluation | None:
        """The score at the end of training, on images that were held out of it; None if there is none yet."""
        path = self._folder.path / EVALUATION
        return read_evaluation(path) if path.is_file() else None

    def metrics(self) -> list[dict[str, Any]]:
        """Return the training log, a dictionary for each line of metrics.jsonl, for a table or a plot."""
        return [*self._folder.metrics()]

    def describe(self) -> list[str]:
        """Return the model and its score in a few words, or nothing for weights outside of a run folder."""
        folder = RunFolder.from_weights(self.source)
        if folder is None:
            return []
        if not folder.finished:
            return ["incomplete"]
        facts: list[str] = []
        with contextlib.suppress(OSError, ValueError):  # a damaged record shall not break a repr
            model = read_json(folder.path / MODEL, ModelRecord)["model"]
            facts.append(describe_config(from_dict(model)))
            if (evaluation := self.evaluation) is not None:
                name = OBJECTIVES["segment"].metric_title
                if isinstance(evaluation, Evaluation):
                    name = "mean average precision" if evaluation.multilabel else "top-1"
                facts.append(f"{evaluation.headline.value:.1%} {name} on {counted(evaluation.images, 'image')}")
        return facts

    @property
    def _folder(self) -> RunFolder:
        folder = RunFolder.from_weights(self.source)
        if folder is None:
            raise RunError(f"{self.source} is not a run folder, so it has no record of its training.")
        return folder

    def __fspath__(self) -> str:
        return self.source

    def __str__(self) -> str:
        return self.source

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        """Return the path of a file in the run folder, as when `vitkit.fit` returned a path."""
        return self.path / name


def describe_config(config: ModelConfig) -> str:
    name = name_of(config) or "a model of its own sizes"
    return f"{name} at {image_size(config.image)}, {counted(config.classes, 'class')}"
