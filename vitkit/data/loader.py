"""Batches of training: the same batches in the same order for any number of workers, from any step on.

The loader names an image that cannot be decoded and replaces it with the next one in the split that can; when too many
fail, it raises an error instead of training on the rest. Each rank counts its own failures; under torchrun the training
loop adds them up.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from vitkit.data.batch import Batch
from vitkit.data.batch_builder import BatchBuilder, new_builder
from vitkit.data.failures import MAX_FAILED, record_failures
from vitkit.data.sources.dataset import DataError
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.threads import load_in_threads
from vitkit.data.transforms import TrainTransform
from vitkit.data.workers import CAN_FORK, load_batches
from vitkit.errors import ConfigError

# Threads hold the interpreter's lock for a third of a crop's time: on 16 cores, 15 of them crop 4,281 images a second,
# and 15 processes that even decode them 12,929. Forked processes share the memory of the cache.
MAX_THREADS = 2
MAX_REPLACEMENTS = 100  # images tried in place of one that cannot be decoded


@dataclass
class Loader:
    """An endless iterable of training batches, from step `start` on.

    Workers are processes that decode. Where the dataset has a cache in host memory, they take crops of it, and where
    they are few, as many threads do. Crops of a cache on a GPU are taken there, and the images of these batches are on
    it.
    """

    dataset: SplitDataset
    batch_size: int  # over all ranks
    start: int = 0
    workers: int = 0
    rank: int = 0
    world_size: int = 1
    pin_memory: bool = False
    max_failed: float = MAX_FAILED
    failures: dict[int, str] = field(default_factory=dict)
    wait_seconds: float = 0.0  # time that the consumer waited for data

    def __post_init__(self) -> None:
        if len(self.dataset.split) == 0:
            raise DataError("there are no images to load.")
        if self.batch_size < 1 or self.batch_size % self.world_size:
            raise ConfigError(
                f"a batch of {self.batch_size} cannot be divided evenly among {self.world_size} processes",
                try_=f"a multiple of {self.world_size}",
            )

    def __iter__(self) -> Generator[Batch, None, None]:
        on_device = self.dataset.cache is not None and self.dataset.cache.batched
        with contextlib.closing(self._batches()) as batches:
            while True:
                asked = time.perf_counter()
                batch = next(batches)
                if not on_device:  # else cropping is work of the step, launched like its augmentation
                    self.wait_seconds += time.perf_counter() - asked
                self._check_failures(batch)
                yield batch

    def _batches(self) -> Generator[Batch, None, None]:
        make_batch, numbers, cache = _TrainBatches(self), itertools.count(self.start), self.dataset.cache
        if cache is None or (not cache.batched and self.workers > MAX_THREADS and CAN_FORK):
            like = self.dataset.empty_batch(self.batch_size // self.world_size)
            return load_batches(make_batch, numbers, like, workers=self.workers, pin_memory=self.pin_memory)
        if cache.batched:
            return (make_batch(number) for number in numbers)
        return load_in_threads(make_batch, numbers, threads=self.workers, pin_memory=self.pin_memory)

    def _check_failures(self, batch: Batch) -> None:
        """Record the batch's failures; an empty batch means that no replacement could be decoded either."""
        if not len(batch.images):
            shown = [f"{self.dataset.split.keys[index]}: {reason}" for index, reason in batch.failures[-3:]]
            raise DataError(
                f"{len(batch.failures)} images in a row cannot be used.",
                such_as=shown,
                try_="vitkit check lists all of them; --set channels=N for images of N bands",
            )
        record_failures(self.failures, batch, self.dataset.split, self.max_failed)


class _TrainBatches:
    """The batch function of training: step number → this rank's share of its batch.

    It runs in workers, where an exception would come back as a traceback, so failures come back as values.
    """

    def __init__(self, loader: Loader):
        self.dataset, self.batch_size = loader.dataset, loader.batch_size
        self.rank, self.world_size = loader.rank, loader.world_size
        self.sampler = loader.dataset.sampler()

    def __call__(self, number: int, images: Tensor | None = None) -> Batch:
        samples = self.sampler.batch_indices(number, self.batch_size, self.rank, self.world_size)
        epochs, indices = zip(*samples, strict=True)
        builder = new_builder(self.dataset.read_ahead(indices), len(samples), images)
        for (epoch, index), draws in zip(samples, TrainTransform.draw(self.dataset.seed, epochs, indices), strict=True):
            if not self._add_or_replace(builder, epoch, index, draws):
                return builder.build_empty()
        return builder.build()

    def _add_or_replace(self, builder: BatchBuilder, epoch: int, index: int, draws: Sequence[float]) -> bool:
        """Add the image, or the next one in the split that can be decoded; return whether there was one."""
        count = len(self.dataset.split)
        return builder.add(epoch, index, draws) or any(
            builder.add(epoch, (index + offset) % count) for offset in range(1, min(count, MAX_REPLACEMENTS))
        )
