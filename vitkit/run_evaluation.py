"""Score a run on data: a classifier, in this process or on a Ray cluster, or a model that segments, by its masks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from vitkit import messages
from vitkit.compute.inference import Precision, check_precision
from vitkit.compute.split_logits import CollectLogits, SplitLogits, collect_logits
from vitkit.data.sources.dataset import Split
from vitkit.data.sources.open import open_data
from vitkit.devices import pick_workers
from vitkit.errors import ConfigError
from vitkit.evaluate.classify import evaluate
from vitkit.evaluate.evaluation import Evaluation
from vitkit.evaluate.held_out import data_to_score
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation
from vitkit.model.build import Model
from vitkit.model.segmenter import Segmenter
from vitkit.progress import Progress
from vitkit.storage.urls import redacted

Engine = Literal["local", "ray"]
PathOrName = str | os.PathLike[str]


def evaluate_run(
    model: Model,
    source: str,
    data: PathOrName,
    *,
    device: torch.device,
    split: str | None,
    label: str | None,
    real: PathOrName | None,
    class_map: PathOrName | None,
    precision: Precision,
    batch: int | None,
    workers: int | None,
    max_failed: float,
    engine: Engine,
    progress: Progress,
) -> Evaluation | SegmentationEvaluation:
    """Score the model of a run, whose `source` names it, on the images of the data that it was not trained on."""
    check_precision(model, device, precision)
    shared: dict[str, Any] = {
        "device": device,
        "precision": precision,
        "batch": batch,
        "workers": pick_workers(workers, device, 1),
        "max_failed": max_failed,
        "progress": progress,
    }
    if isinstance(model, Segmenter):
        from vitkit.evaluate.segmentation import evaluate_masks

        for name, value in (("real", real), ("map", class_map), ("engine", engine if engine != "local" else None)):
            if value is not None:
                raise ConfigError(f"{name} is for classifiers, and {redacted(source)} segments images")
        return evaluate_masks(model, data_to_score(source, open_data(data, task="segment"), split), split, **shared)
    opened = data_to_score(source, open_data(data, label=label), split)
    with _collect(engine) as collect:
        return evaluate(
            model,
            opened,
            split,
            real=None if real is None else Path(real),
            class_map=None if class_map is None else Path(class_map),
            collect=collect,
            **shared,
        )


@contextmanager
def _collect(engine: Engine) -> Iterator[CollectLogits]:
    """Yield the function that computes the logits of a split: in this process, or on a Ray cluster while it lasts."""
    if engine != "ray":
        yield collect_logits
        return
    from vitkit.predict.ray_cluster import ray_cluster
    from vitkit.predict.ray_engine import collect_logits_on_ray

    def collect(model: Model, split: Split, *, device: object, workers: int, **options: Any) -> SplitLogits:
        return collect_logits_on_ray(cluster, model, split, **options)

    with ray_cluster() as cluster:
        messages.say("cluster", cluster.description, file=sys.stderr)
        yield collect
