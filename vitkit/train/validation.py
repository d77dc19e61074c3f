"""Validation during training: loss and accuracy on the validation split, and the score that picks the best step."""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.compute.kept_inputs import KeptInputs
from vitkit.compute.sharding import is_sharded
from vitkit.compute.split_logits import SplitLogits, collect_logits
from vitkit.config.schema import Fit
from vitkit.data.sources.dataset import DataError, Split
from vitkit.devices import TrainPrecision
from vitkit.model.build import Model
from vitkit.train.distributed import Processes
from vitkit.train.loop import Validate
from vitkit.train.mask_validation import MaskScores
from vitkit.train.objectives.base import Objective

BATCH, MAX_BATCH = 64, 512


class Scores(Protocol):
    """The sums over the validation images of a task, and the metrics that they give."""

    def sums(
        self,
        model: Any,
        device: torch.device,
        precision: TrainPrecision,
        batch: int,
        rank: int,
        world_size: int,
    ) -> list[float]:
        """Return the sums over this rank's share of the images, whose number is always the same."""
        ...

    def metrics(self, sums: list[float]) -> dict[str, float]:
        """Return the metrics of the sums over all ranks, with "score", the higher the better.

        Raises a DataError where nothing was scored.
        """
        ...


def build_validation(
    objective: Objective,
    split: Split,
    config: Fit,
    processes: Processes,
    precision: TrainPrecision,
    workers: int,
    *,
    multilabel: bool,
    kept: KeptInputs,
) -> Validate:
    """Return the validation function; ranks share the images, except with FSDP, whose forward needs all ranks."""
    sharded = objective if is_sharded(objective) else None
    rank, world_size = (0, 1) if sharded else (processes.rank, processes.world_size)
    scores: Scores = (
        MaskScores(config, split, kept, workers)
        if config.segments
        else LabelScores(config, split, kept, workers, multilabel=multilabel)
    )
    batch = BATCH
    if processes.device.type == "cuda":  # as large as a micro-batch, whose gradients take more memory
        batch = min(max((config.micro or 0) // BATCH, 1) * BATCH, MAX_BATCH)

    def validate() -> dict[str, float]:
        if sharded:
            sharded.unshard()  # the model is called directly, without the objective's hooks that gather its weights
        sums = scores.sums(objective.model, processes.device, precision, batch, rank, world_size)
        if sharded:
            sharded.reshard()
        # all ranks get the same sums, so that they take the same decisions
        return scores.metrics(processes.broadcast(sums) if sharded else processes.all_reduce_sum(*sums))

    return validate


class LabelScores:
    """Loss and accuracy of a classifier."""

    def __init__(self, config: Fit, split: Split, kept: KeptInputs, workers: int, *, multilabel: bool):
        self.config, self.split, self.kept, self.workers = config, split, kept, workers
        self.multilabel = multilabel

    def sums(
        self, model: Model, device: torch.device, precision: TrainPrecision, batch: int, rank: int, world_size: int
    ) -> list[float]:
        result = collect_logits(
            model,
            self.split,
            device=device,
            precision=precision,
            batch=batch,
            workers=self.workers,
            rank=rank,
            world_size=world_size,
            max_failed=self.config.max_failed,
            kept=self.kept,
        )
        losses, correct = _losses(result)
        return [losses.double().sum().item(), correct.double().sum().item(), float(len(losses))]

    def metrics(self, sums: list[float]) -> dict[str, float]:
        loss, hits, count = sums
        if not count:
            raise DataError(
                "no validation image could be decoded, so there is no score to choose by.",
                try_=f"vitkit check {self.config.data} lists the broken images",
            )
        # where an image has several labels, the loss says more than the accuracy of the top class
        score = -loss / count if self.multilabel else hits / count
        return {"score": score, "loss": loss / count, "top1": hits / count}


def _losses(result: SplitLogits) -> tuple[Tensor, Tensor]:
    """Return (n,) the loss of each image, and whether the class with the highest logit is one of its labels."""
    logits, labels = result.logits, result.labels
    if isinstance(labels, Tensor):
        return F.cross_entropy(logits, labels, reduction="none"), (logits.argmax(1) == labels).float()
    losses, correct = torch.empty(len(logits)), torch.empty(len(logits))
    for rows, table in labels.dense_blocks():
        targets = torch.from_numpy(table).float()
        losses[rows] = F.binary_cross_entropy_with_logits(logits[rows], targets, reduction="none").sum(1)
        correct[rows] = targets.gather(1, logits[rows].argmax(1, keepdim=True))[:, 0]
    return losses, correct
