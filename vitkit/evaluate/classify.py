"""Evaluate a classifier on a split; every score is computed over all images, never averaged over batches.

Shapes: n scored images, K classes of the model.
"""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitkit.compute.inference import Precision
from vitkit.compute.split_logits import CollectLogits, SplitLogits, collect_logits
from vitkit.data.failures import MAX_FAILED
from vitkit.data.groups import Leak
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.sources.splits import canonical_split, scoring_split
from vitkit.data.sparse_labels import SparseLabels
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError, WeightsError
from vitkit.evaluate.class_map import MappedData, map_classes
from vitkit.evaluate.evaluation import Evaluation, LeakedImages, MappedClasses
from vitkit.evaluate.imagenet_real import read_real, real_accuracy, with_real_label
from vitkit.evaluate.mapped_scores import score_mapped
from vitkit.evaluate.matching import MatchedData, match_classes
from vitkit.evaluate.scores import ScoredImages, score_multilabel, score_single_label
from vitkit.model.build import Model, check_of_images
from vitkit.progress import Progress, no_progress
from vitkit.text import few

UNLABELLED = ("val", "test", "all", "train", "trainval")  # the split that is scored where none has labels

log = logging.getLogger("vitkit")


def evaluate(
    model: Model,
    data: Data,
    split: str | None = None,
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    batch: int | None = None,
    workers: int = 0,
    max_failed: float = MAX_FAILED,
    real: Path | None = None,
    class_map: Path | None = None,
    collect: CollectLogits = collect_logits,
    progress: Progress = no_progress,
) -> Evaluation:
    """Score the model on a split, by default the one for scoring. The model is moved to the device.

    Images whose class the model does not have are not scored. `real` is ImageNet-ReaL's file of labels, which data
    without classes are scored against alone; `class_map` is a file of classes (`vitkit.evaluate.class_map`).
    `collect` computes the logits, here or elsewhere.
    """
    check_of_images(model, "the class of an image")
    if real is not None and class_map is not None:
        raise ConfigError("--real and --map are two sets of labels for the same images", try_="one of them")
    real_labels = read_real(real, model) if real is not None else None
    only_real_labels = real_labels is not None and _only_real(model, data)
    matched: MatchedData
    if only_real_labels:
        matched = MatchedData(replace(data, classes=_class_names(model)), (), ())
    elif class_map is not None:
        matched = map_classes(model, data, class_map)
    else:
        matched = match_classes(model, data)
    name = split_to_score(data, split, labelled=not only_real_labels)
    chosen = matched.data.splits[name]
    # the labels of the data decide how to score; a model that was trained on several labels stays multi-label
    multilabel = isinstance(chosen.labels, SparseLabels) or model.metadata.multilabel
    if real is not None and multilabel:
        raise ConfigError("ImageNet-ReaL scores one prediction per image; this evaluation is multi-label.")
    if real_labels is not None and only_real_labels:
        rows = with_real_label(real_labels, chosen.keys)
    else:
        rows = chosen.rows_with_labels()
    if len(rows) == 0:
        raise DataError(
            f"no image of {data.name}, {name}, has a class of the model.",
            found=f"{len(chosen):,} images",
            only_in_the_data=few(matched.extra) or "no other class",
        )
    labelled = chosen.select(rows)
    result = collect(
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

    def score(images: ScoredImages, logits: Tensor, labels: Tensor | SparseLabels) -> dict[str, Any]:
        if multilabel and isinstance(labels, Tensor):  # a multi-label model meets single labels
            labels = SparseLabels.from_indices(labels.numpy(), len(images.classes))
        if isinstance(labels, SparseLabels):
            return score_multilabel(images, logits, labels, known, model.metadata.thresholds)
        if isinstance(matched, MappedData):
            return score_mapped(images, logits, labels, matched.targets, model.metadata.labels)
        return score_single_label(images, logits, labels)

    scores: dict[str, Any] = {}
    if not only_real_labels:
        scores = score(scored, result.logits, result.labels)
        scores["leaked"] = _without_leaked(chosen, scored, result, score)
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
        mapped=_describe_map(class_map, matched, result),
        inputs=tuple(EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing).describe()),
        **scores,
    )


def _class_names(model: Model) -> tuple[str, ...]:
    return model.metadata.labels or tuple(map(str, range(model.config.classes)))


def _only_real(model: Model, data: Data) -> bool:
    """Return whether ReaL's labels are the only ones: the data have no classes, or none that the model has."""
    if not data.classes:
        return True
    try:
        match_classes(model, data)
    except DataError:
        log.warning(
            "%s: its classes (%s) are none of the model's, so ReaL's labels are the only ones",
            data.name,
            few(data.classes),
        )
        return True
    return False


def _describe_map(class_map: Path | None, matched: MatchedData, result: SplitLogits) -> MappedClasses | None:
    if class_map is None or not isinstance(matched, MappedData):
        return None
    targets = matched.targets
    elsewhere = targets[result.logits.argmax(1).numpy()] < 0
    return MappedClasses(
        file=class_map.name, model_classes=int((targets >= 0).sum()), of=len(targets), elsewhere=int(elsewhere.sum())
    )


def _without_leaked(
    split: Split, scored: ScoredImages, result: SplitLogits, score: Callable[..., dict[str, Any]]
) -> LeakedImages | None:
    """Count the scored images that have leaked from training, and score the others alone; None without any."""
    if split.leaked is None or not split.leaked[scored.indices].any():
        return None
    leaked = split.leaked[scored.indices]
    others = np.flatnonzero(leaked == Leak.NONE)
    rest = ScoredImages(scored.classes, scored.keys, scored.indices[others])
    scores: dict[str, Any] = {}
    if len(others):
        with contextlib.suppress(DataError):  # multi-label: none of the others has a label
            scores = score(rest, result.logits[others], result.labels[others])
    kept = ("top1", "macro_f1", "balanced_accuracy", "mean_average_precision")
    return LeakedImages(
        identical=int((leaked == Leak.IDENTICAL).sum()),
        nearly_identical=int((leaked == Leak.NEAR).sum()),
        grouped=int((leaked == Leak.GROUP).sum()),
        others=len(others),
        **{name: scores[name] for name in kept if name in scores},
    )


def split_to_score(data: Data, split: str | None, *, labelled: bool) -> str:
    if split is None:
        return scoring_split(data) if labelled else next(name for name in UNLABELLED if name in data.splits)
    name = split if split in data.splits else canonical_split(split)
    if name not in data.splits:
        raise DataError(f"{data.name} has no split {split}.", found=", ".join(data.splits))
    if labelled and not data.splits[name].labelled:
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
