"""Results for many images: decoded by data workers, computed in batches, in order, never all in memory.

Shapes: B images, C channels, K numbers for each image.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.data.loader import Batch, SplitDataset, sequential_batches
from vitkit.data.sources.dataset import Split
from vitkit.data.transforms import EvalTransform
from vitkit.devices import pick_workers
from vitkit.progress import Progress, no_progress

MIN_IMAGES_FOR_WORKERS = 257  # fewer are decoded within a second, which is not worth a process

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class MakeResult(Protocol[Result_co]):
    """A function of the (K,) numbers of an image, or of the reason why there are none."""

    def __call__(
        self, row: NDArray[np.float32] | None = None, /, *, name: str | None = None, error: str | None = None
    ) -> Result_co: ...


@dataclass(frozen=True, kw_only=True)
class ImageTask(Generic[Result]):
    """The work on a stream of images: how they are preprocessed, what is computed, and the result for each."""

    doing: str  # for the progress: "predicting"
    transform: EvalTransform
    channels: int
    device: torch.device
    batch: int
    compute: Callable[[Tensor], NDArray[np.float32]]  # (B, C, height, width), preprocessed → (B, K)
    result: MakeResult[Result]


def workers_for(images: int, requested: int | None, device: torch.device) -> int:
    """Return the number of data workers for so many images: as requested, none for few, else the device's number."""
    return 0 if requested is None and images < MIN_IMAGES_FOR_WORKERS else pick_workers(requested, device, 1)


def stream_results(
    task: ImageTask[Result], split: Split, *, start: int = 0, workers: int = 0, progress: Progress = no_progress
) -> Iterator[Result]:
    """Yield the results of all images from index `start` on, in order; unreadable ones have an error."""
    # batches begin where they would in one go: the last bits of a product depend on the batch that it is computed in
    repeated = start % task.batch
    remaining = split.select(np.arange(start - repeated, len(split))) if start else split
    dataset = SplitDataset(split=remaining, transform=task.transform, channels=task.channels)
    batches = sequential_batches(dataset, task.batch, workers=workers, pin_memory=task.device.type == "cuda")
    results = (result for batch in batches for result in _batch_results(task, remaining, batch))
    yield from progress(islice(results, repeated, None), len(remaining) - repeated, task.doing)


def _batch_results(task: ImageTask[Result], split: Split, batch: Batch) -> list[Result]:
    results = {index: task.result(name=split.keys[index], error=reason) for index, reason in batch.failures}
    if len(batch.images):
        rows = task.compute(batch.images)
        for index, row in zip(batch.indices.tolist(), rows, strict=True):
            results[index] = task.result(row, name=split.keys[index])
    return [results[index] for index in sorted(results)]
