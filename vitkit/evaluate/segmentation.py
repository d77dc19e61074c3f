"""Evaluate a segmentation model on a split: the masks of all images, at their own size, against the given ones.

Shapes: B images, C channels, K classes, (h, w) of an image.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitkit.compute.batch_size import inference_batch
from vitkit.compute.inference import Precision
from vitkit.compute.segment import ComputeMask, exact_scores, trained_size
from vitkit.data.failures import MAX_FAILED, allowed_failures, failure_reason, too_many_failures
from vitkit.data.sample import decode_sample
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.threads import map_in_threads
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError, DecodeError
from vitkit.evaluate.classify import split_to_score
from vitkit.evaluate.matching import match_classes
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation
from vitkit.evaluate.segmentation_scores import MaskCounts
from vitkit.evaluate.segmentation_summary import summarise_masks
from vitkit.model.build import Model
from vitkit.model.segmenter import Segmenter
from vitkit.progress import Progress, no_progress

LAUNCHED = 16  # masks that are computed before the first of them is read: a GPU need not wait for the host after each


def evaluate_masks(
    model: Segmenter,
    data: Data,
    split: str | None = None,
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    batch: int | None = None,
    workers: int = 0,
    max_failed: float = MAX_FAILED,
    progress: Progress = no_progress,
) -> SegmentationEvaluation:
    """Score the model's masks on a split, by default the one for scoring. The model is moved to the device.

    Pixels of a class that the model does not have are ignored. `workers` are threads.
    """
    if data.task != "segment":
        raise DataError(
            f"{data.name} has no masks to score a segmentation model against.",
            found=data.kind,
            try_="--task segment, which says what masks are looked for",
        )
    device = torch.device(device)
    matched = match_classes(model, data)
    name = split_to_score(data, split, labelled=True)
    chosen = matched.data.splits[name]
    rows = chosen.rows_with_labels()
    compute = compute_mask_of(model.to(device), device, precision)
    counts, windows, failures = MaskCounts(model.config.classes), 0, dict[int, str]()
    for one in progress(
        predicted_masks(compute, chosen, rows, model.config.channels, batch or inference_batch(model, device), workers),
        len(rows),
        "evaluating",
        lambda image: 1,
    ):
        if one.failure:
            failures[one.index] = one.failure
            if len(failures) > allowed_failures(len(rows), max_failed):
                such_as = [f"{chosen.keys[index]}: {reason}" for index, reason in [*failures.items()][:5]]
                raise too_many_failures(len(failures), len(rows), max_failed, such_as)
            continue
        counts.add(one.index, one.mask, one.target)
        windows += one.windows > 1
    if not len(counts):
        raise DataError(
            "no image could be decoded with its mask; there is nothing to score.",
            such_as=[f"{chosen.keys[index]}: {reason}" for index, reason in [*failures.items()][:5]],
        )
    return SegmentationEvaluation(
        data=data.name,
        split=name,
        classes=matched.data.classes,
        palette=matched.data.palette,
        left_out={chosen.keys[index]: reason for index, reason in failures.items()},
        unlabelled=len(chosen) - len(rows),
        missing=matched.missing,
        extra=matched.extra,
        windows=windows,
        inputs=tuple(compute.transform.describe()),
        **summarise_masks(counts, matched.data.classes, chosen.keys, chosen.leaked),
    )


def compute_mask_of(model: Model, device: torch.device, precision: Precision) -> ComputeMask:
    """Return the computation of the model's masks; the model is on the device."""
    if precision == "fp8":
        raise ConfigError("fp8 is for plain ViTs: this model segments", try_="--precision bf16")
    return ComputeMask(
        scores=exact_scores(model, device, torch.float32 if precision == "fp32" else torch.bfloat16),
        transform=EvalTransform(image=model.config.image, preprocessing=model.metadata.preprocessing),
        trained_size=trained_size(model.metadata.provenance),
    )


@dataclass(frozen=True, eq=False)
class ScoredMask:
    """The mask that the model predicts for an image, beside the target; or why there is none."""

    index: int  # in the split
    mask: np.ndarray  # (h, w)
    target: np.ndarray  # (h, w)
    windows: int = 1
    failure: str = ""


@dataclass(frozen=True, eq=False)
class _Sample:
    """A decoded image with its mask: resized to the model's input as a whole, or its pixels, to be cut."""

    index: int
    target: np.ndarray
    inputs: Tensor | None = None
    pixels: np.ndarray | None = None
    failure: str = ""


def predicted_masks(
    compute: ComputeMask, split: Split, rows: np.ndarray, channels: int, batch: int, threads: int
) -> Iterator[ScoredMask]:
    """Yield the masks of these images of a split, in no particular order: whole images are computed in batches."""

    def prepare(row: int) -> _Sample:
        index = int(rows[row])
        try:
            joined = decode_sample(split, index, channels, masks=True)
        except (DecodeError, DataError) as error:
            return _Sample(index, np.empty(0, np.uint8), failure=failure_reason(error, split.keys[index]))
        pixels, target = joined[..., :-1], joined[..., -1].astype(np.uint8)
        if compute.windows((target.shape[0], target.shape[1])) > 1:
            return _Sample(index, target, pixels=pixels)
        return _Sample(index, target, inputs=compute.transform(np.ascontiguousarray(pixels)))

    waiting: list[_Sample] = []
    for sample in map_in_threads(prepare, range(len(rows)), threads=threads):
        if sample.failure:
            yield ScoredMask(sample.index, sample.target, sample.target, failure=sample.failure)
        elif sample.pixels is not None:
            predicted = compute(sample.pixels)
            yield ScoredMask(sample.index, predicted.mask, sample.target, predicted.windows)
        else:
            waiting.append(sample)
        if len(waiting) == batch:
            yield from _masks_of(compute, waiting)
            waiting = []
    yield from _masks_of(compute, waiting)


def _masks_of(compute: ComputeMask, samples: list[_Sample]) -> Iterator[ScoredMask]:
    if not samples:
        return
    scores = compute.scores(torch.stack([sample.inputs for sample in samples if sample.inputs is not None]))
    for first in range(0, len(samples), LAUNCHED):
        group = list(zip(samples[first : first + LAUNCHED], scores[first : first + LAUNCHED], strict=True))
        masks = [compute.on_device(own, (sample.target.shape[0], sample.target.shape[1])) for sample, own in group]
        for (sample, _), mask in zip(group, masks, strict=True):
            yield ScoredMask(sample.index, mask.cpu().numpy(), sample.target)
