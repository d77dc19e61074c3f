"""The model's inputs of a split, kept on the device by the first pass over it for the passes that follow.

A run validates twenty times on the same images, and the runs of a comparison are scored on the same ones. The inputs
are kept as floats, just as they went through the model, so a score is the same whether they were kept or not. Those of
the score at the end of a run are loaded ahead, while the device computes steps and most cores have nothing to do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from vitkit import devices
from vitkit.compute.inputs_ahead import InputsAhead
from vitkit.data.batch import Batch
from vitkit.data.split_dataset import SplitDataset

MOST_AHEAD = 5_000  # images of a split that a few threads load ahead; for more, processes are faster
SHARE = 0.1  # of the memory of the device that is free when the first inputs are kept


class KeptInputs:
    """The inputs of one split or a few, on one device, where all of a split's fit into a share of its memory."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], list[Batch]] = {}
        self._ahead: dict[tuple[Any, ...], InputsAhead] = {}
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
        key = _key(dataset, device, share)
        if key in self._kept:
            yield from self._kept[key]
            return
        if self._room is None:
            self._room = _room(device)
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
            self._ahead.pop(key, None)  # of a thread that began after this pass
            self._alive.append(dataset)

    def load_ahead(
        self,
        dataset: SplitDataset,
        device: torch.device,
        share: tuple[int, int, int],
        batches: Generator[Batch, None, None],
    ) -> None:
        """Load the batches of the next pass into the memory of the host, in the thread that calls this.

        Splits of many images, and those that do not fit into a share of the memory, are left to the pass.
        """
        needed = len(dataset.split) * dataset.empty_batch(1).nbytes // share[1]
        key = _key(dataset, device, share)
        if key in self._kept or len(dataset.split) > MOST_AHEAD or needed > _room(torch.device("cpu")):
            return
        self._ahead[key] = ahead = InputsAhead(dataset)
        ahead.load(batches)

    def take_ahead(
        self, dataset: SplitDataset, device: torch.device, share: tuple[int, int, int]
    ) -> InputsAhead | None:
        """Return the inputs that were or are being loaded ahead, once; None if there are none."""
        return self._ahead.pop(_key(dataset, device, share), None)

    def cancel_ahead(self) -> None:
        """End the loading of inputs that no pass will take."""
        for ahead in [*self._ahead.values()]:
            ahead.cancel()


def _key(dataset: SplitDataset, device: torch.device, share: tuple[int, int, int]) -> tuple[Any, ...]:
    rows = hashlib.sha256(np.ascontiguousarray(dataset.split.rows).tobytes()).hexdigest()
    return (id(dataset.split.store), rows, dataset.transform, dataset.channels, device, *share)


def _room(device: torch.device) -> int:
    free = devices.free_memory(device) if device.type == "cuda" else devices.available_memory()
    return int(SHARE * free)
