"""A model's answers to every picture of a split, in exact preprocessing: what choosing and scoring start from.

Shapes: n pictures, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from vitkit.compute.inference import Numbers, ready
from vitkit.data.loader import Reader, evaluation_batches
from vitkit.data.sources.base import Split
from vitkit.data.transforms import Exact
from vitkit.model.build import Model
from vitkit.progress import Progress, no_progress


@dataclass(frozen=True)
class Answers:
    logits: Tensor  # (n, K) float32, on the host
    labels: Tensor  # (n,) class indices, -1 where unlabelled; or (n, K) of 0 and 1
    indices: Tensor  # (n,) which pictures of the split
    failures: dict[int, str]  # index → why it could not be decoded


def answers(
    model: Model,
    split: Split,
    *,
    device: torch.device | str = "cpu",
    precision: Numbers = "fp32",
    batch: int = 64,
    workers: int = 0,
    rank: int = 0,
    ranks: int = 1,
    max_failed: float = 0.01,
    progress: Progress = no_progress,
) -> Answers:
    """The model, already on the device, asked in evaluation mode; it is left in the mode it was in."""
    device = torch.device(device)
    exact = Exact(image=model.config.image, preprocessing=model.metadata.preprocessing)
    reader = Reader(split=split, transform=exact, channels=model.config.channels)
    batches = evaluation_batches(
        reader, batch, workers=workers, rank=rank, ranks=ranks, pin=device.type == "cuda", max_failed=max_failed
    )
    mine = -(-(len(split) - rank) // ranks)
    logits, labels, indices = [], [], []
    failures: dict[int, str] = {}
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            ask = asking(model, precision)
            for loaded in progress(batches, -(-mine // batch), "evaluating"):
                failures.update(loaded.failures)
                if len(loaded.images):
                    logits.append(ask(loaded.images.to(device, non_blocking=True)).float().cpu())
                    labels.append(loaded.labels)
                    indices.append(loaded.indices)
    finally:
        model.train(training)
    empty = torch.empty(0, model.config.classes)
    return Answers(
        torch.cat(logits) if logits else empty,
        torch.cat(labels) if labels else torch.empty(0).long(),
        torch.cat(indices) if indices else torch.empty(0).long(),
        failures,
    )


def asking(model: Model, precision: Numbers) -> Callable[[Tensor], Tensor]:
    """What answers for a model; shards of one cannot be copied, and round by themselves."""
    if any(isinstance(part, FSDPModule) for part in model.modules()):
        return lambda images: model(images.bfloat16() if precision == "bf16" else images)
    return ready(model, precision)
