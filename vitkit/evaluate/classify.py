"""Evaluate a classifier on a split; every score is computed over all images, never averaged over batches.

Shapes: n scored images, K classes of the model.
"""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.compute.inference import Precision
from vitkit.compute.split_logits import SplitLogits, collect_logits
from vitkit.data.groups import Leak
from vitkit.data.loader import MAX_FAILED
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.sources.splits import canonical_split, scoring_split
from vitkit.data.sparse_labels import SparseLabels
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError, WeightsError
from vitkit.evaluate.evaluation import Evaluation, LeakedImages
from vitkit.evaluate.imagenet_real import read_real, real_accuracy
from vitkit.evaluate.matching import match_classes
from vitkit.evaluate.scores import ScoredImages, score_multilabel, score_single_label
from vitkit.model.build import Model
from vitkit.progress import Progress, no_progress
from vitkit.text import few


def evaluate(
    model: Model,
    data: Data,
    split: str | None = None,
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    batch: int = 64,
    workers: int = 0,
    max_failed: float = MAX_FAILED,
    real: Path | None = None,
    progress: Progress = no_progress,
) -> Evaluation:
    """Score the model on a split, by default the one for scoring. The model is moved to the device.

    Images whose class the model does not have are not scored. `real` is ImageNet-ReaL's file of labels.
    """
    matched = match_classes(model, data)
    name = scoring_split(data) if split is None else _labelled_split(data, split)
    chosen = matched.data.splits[name]
    # the labels of the data decide how to score; a model that was trained on several labels stays multi-label
    multilabel = isinstance(chosen.labels, SparseLabels) or model.metadata.multilabel
    if real is not None and multilabel:
        raise ConfigError("ImageNet-ReaL scores one prediction per image; this evaluation is multi-label.")
    real_labels = read_real(real, model) if real is not None else None
    rows = chosen.rows_with_labels()
    if len(rows) == 0:
        raise DataError(
            f"no image of {data.name}, {name}, has a class of the model.",
            found=f"{len(chosen):,} images",
            only_in_the_data=few(matched.extra) or "no other class",
        )
    labelled = chosen.select(rows)
    result = collect_logits(
        model.to(device),
        labelled,
        device=device,
        precision=precision,
        batch=batch,
        workers=workers,
        max_failed=max_failed,
        progress=progress,
    )
    _check_logits(result, labelled, precision)
    scored = ScoredImages(matched.data.classes, chosen.keys, rows[result.indices.numpy()])
    missing = set(matched.missing)
    known = np.array([label not in missing for label in scored.classes])
    labels = result.labels
    if multilabel and isinstance(labels, Tensor):  # a multi-label model meets single labels
        labels = SparseLabels.from_indices(labels.numpy(), len(scored.classes))
    scores: dict[str, Any] = (
        score_multilabel(scored, result.logits, labels, known, model.metadata.thresholds)
        if isinstance(labels, SparseLabels)
        else score_single_label(scored, result.logits, labels)
    )
    scores["leaked"] = _without_leaked(chosen, scored, result.logits, labels, known)
    if real_labels is not None:
        scores["real"] = real_accuracy(
            real_labels, map(chosen.keys.__getitem__, scored.indices), result.logits.argmax(1).tolist()
        )
    return Evaluation(
        data=data.name,
        split=name,
        images=len(result.logits),
        classes=scored.classes,
        multilabel=multilabel,
        left_out={chosen.keys[rows[index]]: reason for index, reason in result.failures.items()},
        unlabelled=len(chosen) - len(rows),
        missing=matched.missing,
        extra=matched.extra,
        inputs=tuple(EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing).describe()),
        **scores,
    )


def _without_leaked(
    split: Split, scored: ScoredImages, logits: Tensor, labels: Tensor | SparseLabels, known: NDArray[np.bool_]
) -> LeakedImages | None:
    """Count the scored images that have leaked from training, and score the others alone; None without any."""
    if split.leaked is None or not split.leaked[scored.indices].any():
        return None
    leaked = split.leaked[scored.indices]
    others = np.flatnonzero(leaked == Leak.NONE)
    rest = ScoredImages(scored.classes, scored.keys, scored.indices[others])
    scores: dict[str, Any] = {}
    if len(others) and isinstance(labels, SparseLabels):
        with contextlib.suppress(DataError):  # none of the others has a label
            scores = score_multilabel(rest, logits[others], labels[others], known)
    elif len(others) and isinstance(labels, Tensor):
        scores = score_single_label(rest, logits[others], labels[others])
    kept = ("top1", "macro_f1", "balanced_accuracy", "mean_average_precision")
    return LeakedImages(
        identical=int((leaked == Leak.IDENTICAL).sum()),
        nearly_identical=int((leaked == Leak.NEAR).sum()),
        grouped=int((leaked == Leak.GROUP).sum()),
        others=len(others),
        **{name: scores[name] for name in kept if name in scores},
    )


def _labelled_split(data: Data, split: str) -> str:
    name = split if split in data.splits else canonical_split(split)
    if name not in data.splits:
        raise DataError(f"{data.name} has no split {split}.", found=", ".join(data.splits))
    if not data.splits[name].labelled:
        raise DataError(f"the images of {data.name}, {name}, have no labels to score against.")
    return name


def _check_logits(result: SplitLogits, split: Split, precision: str) -> None:
    if len(result.logits) == 0:
        raise DataError(
            "no image could be decoded; there is nothing to score.",
            such_as=[f"{split.keys[index]}: {reason}" for index, reason in [*result.failures.items()][:5]],
        )
    wrong = result.indices[~result.logits.isfinite().all(1)]
    if len(wrong):
        raise WeightsError(
            f"the model's logits are not finite for {len(wrong):,} of {len(result.logits):,} images.",
            such_as=few([split.keys[int(index)] for index in wrong[:3]]),
            try_="--precision fp32" if precision != "fp32" else "an earlier checkpoint of the run",
        )
