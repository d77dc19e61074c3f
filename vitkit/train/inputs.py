"""The inputs of a step: batches prefetched, augmented and mixed on the device, with soft targets."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.config.schema import Fit
from vitkit.data.augment import Augment, augment, mix
from vitkit.data.batch import Batch
from vitkit.train.distributed import Processes
from vitkit.train.prefetch import Prefetcher
from vitkit.train.step import MicroBatch


class InputPipeline:
    """Makes the pixels and targets of a micro-batch from a batch of the data loader."""

    def __init__(self, config: Fit, processes: Processes, classes: int):
        self.seed, self.rank = config.seed, processes.rank
        self.one_hot_classes = classes if config.objective == "labels" else None
        self.prefetch = Prefetcher(processes.device)
        settings = config.augment
        self.augment = Augment(
            randaugment=settings.randaugment, erase=settings.erase, mixup=settings.mixup, cutmix=settings.cutmix
        )

    def __call__(self, number: int, batch: Batch) -> MicroBatch:
        """Augment and mix micro-batch `number` on the device, and seed torch for what the forward pass draws."""
        batch = self.prefetch(batch)
        pixels = augment(batch.images, batch.indices, self.augment, seed=self.seed, epoch=batch.epochs.numpy())
        targets = self._targets(batch.labels)
        if targets.ndim == 2:
            pixels, targets = mix(pixels, targets, self.augment, seed=self.seed, step=number, rank=self.rank)
        torch.manual_seed(micro_batch_seed(self.seed, number, self.rank))
        return pixels, targets

    def _targets(self, labels: Tensor) -> Tensor:
        if self.one_hot_classes is None or labels.ndim == 2:
            return labels
        return F.one_hot(labels, self.one_hot_classes).float()


def micro_batch_seed(seed: int, number: int, rank: int) -> int:
    """Return a seed for torch's generators that depends on the run's seed, the micro-batch and the rank only."""
    state = np.random.SeedSequence((seed % 2**64, 0xD0, number, rank)).generate_state(1, np.uint64)[0]
    return int(state) >> 1  # torch takes 63 bits
