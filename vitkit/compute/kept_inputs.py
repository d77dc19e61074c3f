"""The model's inputs of a split, kept on the device by the first pass over it for the passes that follow.

A run validates twenty times on the same images, and the runs of a comparison are scored on the same ones. The inputs
are kept as floats, just as they went through the model, so a score is the same whether they were kept or not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vitkit import devices
from vitkit.data.batch import Batch
from vitkit.data.loader import SplitDataset

SHARE = 0.1  # of the memory of the device that is free when the first inputs are kept


class KeptInputs:
    """The inputs of one split or a few, on one device, where all of a split's fit into a share of its memory."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], list[Batch]] = {}
        self._alive: list[SplitDataset] = []  # whose stores' ids are keys, and must not be given to others
        self._room: int | None = None

    def batches(
        self,
        dataset: SplitDataset,
        device: torch.device,
        share: tuple[int, int, int],
        load: Callable[[], Iterator[Batch]],
    ) -> Iterator[Batch]:
        """Yield the batches that `load` yields, from the device if an earlier pass has kept them there.

        Their labels may be those of the earlier pass.

        share   rank, world size and images of a batch, which with the dataset determine the batches
        """
        rows = hashlib.sha256(np.ascontiguousarray(dataset.split.rows).tobytes()).hexdigest()
        key = (id(dataset.split.store), rows, dataset.transform, dataset.channels, device, *share)
        if key in self._kept:
            yield from self._kept[key]
            return
        if self._room is None:
            free = devices.free_memory(device) if device.type == "cuda" else devices.available_memory()
            self._room = int(SHARE * free)
        kept: list[Batch] | None = []
        taken = 0
        for batch in load():
            taken += batch.images.numel() * batch.images.element_size()
            if kept is None or taken > self._room:
                kept = None
                yield batch
                continue
            # a copy also on a CPU: the memory that a worker decoded to is used again
            copied = replace(batch, images=batch.images.to(device, copy=True))
            kept.append(copied)
            yield copied
        if kept is not None:
            self._room -= taken
            self._kept[key] = kept
            self._alive.append(dataset)
