"""Pictures that go through the model together, with what belongs to them.

Shapes: B this process's share of a batch, C channels, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Batch:
    images: Tensor  # (B, C, height, width): uint8 for training, normalised float32 for evaluation
    labels: Tensor  # (B,) class indices, -1 where unlabelled; or (B, K) of 0 and 1
    indices: Tensor  # (B,) which pictures of the split these are
    epochs: Tensor  # (B,) which pass over the data each belongs to
    failures: tuple[tuple[int, str], ...] = ()  # pictures that could not be decoded: index, reason

    def to(self, device: torch.device | str) -> Batch:
        """On the device; from pinned memory the copy runs while the host goes on.

        Indices and epochs stay on the host, where augmentation draws from them.
        """
        return replace(
            self, images=self.images.to(device, non_blocking=True), labels=self.labels.to(device, non_blocking=True)
        )

    def pin_memory(self) -> Batch:
        return replace(self, images=self.images.pin_memory(), labels=self.labels.pin_memory())

    def __getstate__(self) -> dict[str, Any]:
        """To another process as plain bytes; torch would make a file in shared memory for each tensor."""
        return {name: value.numpy() if isinstance(value, Tensor) else value for name, value in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(
            {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in state.items()}
        )
