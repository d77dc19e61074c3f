"""Outputs for many images: decoded by data workers, computed in batches, in order, never all in memory.

Shapes: n images of a batch, B those of them that could be decoded, C channels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from vitkit.compute.pipeline import PART, ComputedBatch, ComputeOutputs, compute_batches, lent_parts
from vitkit.data.evaluation_batches import sequential_batches
from vitkit.data.sources.dataset import Split
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import EvalTransform
from vitkit.devices import pick_workers
from vitkit.progress import Progress, no_progress

MIN_IMAGES_FOR_WORKERS = 257  # fewer are decoded within a second, which is not worth a process


@dataclass(frozen=True, kw_only=True)
class ImageTask:
    """The work on a stream of images: how they are preprocessed, and what is computed."""

    doing: str  # for the progress: "predicting"
    transform: EvalTransform
    channels: int
    device: torch.device
    batch: int
    compute: ComputeOutputs  # (B, C, height, width), preprocessed → (B, …) each


@dataclass(frozen=True, eq=False)
class ImageOutputs:
    """The outputs of one batch after the other in a stream of images, in columns."""

    first: int  # index of its first image in the split
    images: int  # n
    rows: NDArray[np.int64]  # (B,) the positions in the batch of the images that have outputs
    outputs: tuple[NDArray[Any], ...] | None  # (B, …) each; None where no image has any
    errors: dict[int, str]  # position → why there are none

    def __len__(self) -> int:
        return self.images

    def column(self, output: int, width: int, dtype: DTypeLike, missing: float = 0) -> NDArray[Any]:
        """Return an output of all images, (n, width), with `missing` for those that have none."""
        if self.outputs is not None and len(self.rows) == self.images:
            return self.outputs[output].astype(dtype, copy=False)
        column = np.full((self.images, width), missing, dtype)
        if self.outputs is not None:
            column[self.rows] = self.outputs[output]
        return column

    def without_first(self, count: int) -> "ImageOutputs":
        """Return the outputs without those of the first images."""
        kept = self.rows >= count
        return ImageOutputs(
            self.first + count,
            self.images - count,
            self.rows[kept] - count,
            None if self.outputs is None else tuple(output[kept] for output in self.outputs),
            {row - count: error for row, error in self.errors.items() if row >= count},
        )


def workers_for(images: int, requested: int | None, device: torch.device) -> int:
    """Return the number of data workers for so many images: as requested, none for few, else the device's number."""
    return 0 if requested is None and images < MIN_IMAGES_FOR_WORKERS else pick_workers(requested, device, 1)


def stream_outputs(
    task: ImageTask,
    split: Split,
    *,
    start: int = 0,
    workers: int = 0,
    threads: int = 0,
    progress: Progress = no_progress,
) -> Iterator[ImageOutputs]:
    """Yield the outputs of all images from index `start` on, batch by batch; unreadable images have an error.

    They are decoded by so many worker processes, or `threads` of this one.
    """
    # batches begin where they would in one go: the last bits of a product depend on the batch that it is computed in
    repeated = start % task.batch
    remaining = split.select(np.arange(start - repeated, len(split))) if start else split
    dataset = SplitDataset(split=remaining, transform=task.transform, channels=task.channels)
    parts = sequential_batches(
        dataset,
        task.batch,
        workers=workers,
        pin_memory=task.device.type == "cuda",
        part=PART,
        lend=lent_parts(task.batch),
        threads=threads,
    )
    batches = compute_batches(parts, task.batch, task.compute, task.device)
    yield from progress(
        _in_order(batches, start - repeated, repeated), len(remaining) - repeated, task.doing, ImageOutputs.__len__
    )


def _in_order(batches: Iterator[ComputedBatch], first: int, repeated: int) -> Iterator[ImageOutputs]:
    """Yield the outputs with their positions; `first` is the split's index of the first image."""
    done = 0
    for batch in batches:
        outputs = ImageOutputs(
            first + done,
            batch.images,
            batch.indices - done,
            None if batch.outputs is None else tuple(output.numpy() for output in batch.outputs),
            {index - done: reason for index, reason in batch.failures},
        )
        done += batch.images
        if repeated:
            outputs, repeated = outputs.without_first(repeated), 0
        if len(outputs):
            yield outputs
