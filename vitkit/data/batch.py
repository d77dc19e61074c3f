"""A batch: images that go through the model together, with their labels and indices.

Shapes: B this rank's share of a batch, C channels, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitkit.data.sparse_labels import SparseLabels


@dataclass(frozen=True, kw_only=True)
class Batch:
    images: Tensor  # (B, C, height, width): uint8 for training, normalised float32 for evaluation
    labels: Tensor | SparseLabels  # (B,) class indices, -1 where unlabelled; or those of multi-label data
    indices: Tensor  # (B,) indices of the images in the split
    epochs: Tensor  # (B,) the epoch of each image
    failures: tuple[tuple[int, str], ...] = ()  # images that could not be decoded: index, reason

    def images_read(self) -> int:
        """Return how many images were read for this batch, those that could not be decoded included."""
        return len(self.indices) + len(self.failures)

    def to(self, device: torch.device | str) -> Batch:
        """Copy images and labels to the device; from pinned memory the copy is asynchronous.

        Indices and epochs stay on the host, where augmentation draws from them.
        """
        return replace(self, images=self.images.to(device, non_blocking=True), labels=self.targets(device))

    def targets(self, device: torch.device | str) -> Tensor:
        """Return the labels on the device, of multi-label data as (B, K) floats of 0 and 1, which are made there."""
        if isinstance(self.labels, Tensor):
            return self.labels.to(device, non_blocking=True)
        table = torch.zeros(self.labels.shape, device=device)
        rows, columns = (
            torch.from_numpy(values.astype(np.int64)).to(device, non_blocking=True)
            for values in (self.labels.rows(), self.labels.numbers)
        )
        return table.index_put_((rows, columns), table.new_ones(()))

    def pin_memory(self) -> Batch:
        labels = self.labels.pin_memory() if isinstance(self.labels, Tensor) else self.labels
        return replace(self, images=self.images.pin_memory(), labels=labels)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle tensors as numpy arrays; torch would create a file in shared memory for each tensor."""
        return {name: value.numpy() if isinstance(value, Tensor) else value for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(
            {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in state.items()}
        )
