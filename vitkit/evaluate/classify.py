"""A model's answers to the pictures of a split, scored: everything counted over pictures, never averaged over batches.

Shapes: n pictures that were scored, K classes of the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitkit.compute.inference import Numbers
from vitkit.compute.split_logits import Answers, answers
from vitkit.data.sources.base import Data, DataError, Split
from vitkit.data.sources.splits import canonical, scoring_split
from vitkit.errors import ConfigError, WeightsError
from vitkit.evaluate.evaluation import Evaluation
from vitkit.evaluate.matching import match
from vitkit.evaluate.real import read_real, real_accuracy
from vitkit.evaluate.scores import Asked, score_one_label, score_several_labels
from vitkit.model.build import Model
from vitkit.progress import Progress, no_progress
from vitkit.text import few


def evaluate(
    model: Model,
    data: Data,
    split: str | None = None,
    *,
    device: torch.device | str = "cpu",
    precision: Numbers = "fp32",
    batch: int = 64,
    workers: int = 0,
    max_failed: float = 0.01,
    real: Path | None = None,
    progress: Progress = no_progress,
) -> Evaluation:
    """How good the model is on a split: the one for scoring, unless named. The model is moved to the device.

    Pictures whose class the model does not have are not asked about. `real` is ImageNet-ReaL's file of labels.
    """
    matched = match(model, data)
    name = scoring_split(data) if split is None else _named(data, split)
    chosen = matched.data.splits[name]
    # labels in the data decide what an answer is; a model that was trained on several keeps answering so
    several = chosen.labels.ndim == 2 or bool(model.metadata.provenance.get("multilabel"))
    if real is not None and several:
        raise ConfigError("ImageNet-ReaL scores one answer per picture, not several labels.")
    seen = read_real(real, model) if real is not None else None
    rows = np.arange(len(chosen)) if chosen.labels.ndim == 2 else np.flatnonzero(chosen.labels >= 0)
    if len(rows) == 0:
        raise DataError(
            f"no picture of {data.name}, {name}, has a class of the model.",
            found=f"{len(chosen):,} pictures",
            only_the_data_have=few(matched.extra) or "no other class",
        )
    told = answers(
        model.to(device),
        chosen.select(rows),
        device=device,
        precision=precision,
        batch=batch,
        workers=workers,
        max_failed=max_failed,
        progress=progress,
    )
    _refuse_nonsense(told, chosen.select(rows), precision)
    asked = Asked(matched.data.classes, chosen.keys, rows[told.indices.numpy()])
    unknown = set(matched.missing)
    known = np.array([label not in unknown for label in asked.classes])
    scores: dict[str, Any] = (
        score_several_labels(asked, told.logits, told.labels, known)
        if several
        else score_one_label(asked, told.logits, told.labels)
    )
    if seen is not None:
        scores["real"] = real_accuracy(
            seen, map(chosen.keys.__getitem__, asked.indices), told.logits.argmax(1).tolist()
        )
    return Evaluation(
        data=data.name,
        split=name,
        pictures=len(told.logits),
        classes=asked.classes,
        multilabel=several,
        left_out={chosen.keys[rows[index]]: reason for index, reason in told.failures.items()},
        unlabelled=len(chosen) - len(rows),
        missing=matched.missing,
        extra=matched.extra,
        **scores,
    )


def _named(data: Data, split: str) -> str:
    name = split if split in data.splits else canonical(split)
    if name not in data.splits:
        raise DataError(f"{data.name} has no split {split}.", found=", ".join(data.splits))
    if not data.splits[name].labelled:
        raise DataError(f"the pictures of {data.name}, {name}, have no labels to score against.")
    return name


def _refuse_nonsense(told: Answers, split: Split, precision: str) -> None:
    if len(told.logits) == 0:
        raise DataError(
            "no picture could be decoded; there is nothing to score.",
            such_as=[f"{split.keys[index]}: {reason}" for index, reason in [*told.failures.items()][:5]],
        )
    wrong = told.indices[~told.logits.isfinite().all(1)]
    if len(wrong):
        raise WeightsError(
            f"the model answers {len(wrong):,} of {len(told.logits):,} pictures with no finite numbers.",
            such_as=few([split.keys[int(index)] for index in wrong[:3]]),
            try_="--precision fp32" if precision != "fp32" else "an earlier checkpoint of the run",
        )
