"""A batch of a dataset, built image by image; images that cannot be decoded are named in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitkit.data.batch import Batch
from vitkit.data.failures import failure_reason
from vitkit.data.image_cache import ImageCache
from vitkit.data.sources.dataset import DataError
from vitkit.data.sparse_labels import SparseLabels
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import TrainTransform
from vitkit.errors import DecodeError


class BatchBuilder:
    """A batch under construction; each image is written straight into `images`."""

    def __init__(self, dataset: SplitDataset, images: Tensor):
        self.dataset, self.images = dataset, images
        self.samples: list[tuple[int, int]] = []  # (epoch, index)
        self.failures: list[tuple[int, str]] = []

    def add(self, epoch: int, index: int, draws: Sequence[float] | None = None) -> bool:
        """Add the image and return whether it could be decoded."""
        try:
            self._add_image(epoch, index, draws)
        except (DecodeError, DataError) as error:
            self.failures.append((index, failure_reason(error, self.dataset.split.keys[index])))
            return False
        self.samples.append((epoch, index))
        return True

    def _add_image(self, epoch: int, index: int, draws: Sequence[float] | None) -> None:
        np.copyto(self.images[len(self.samples)].numpy(), self.dataset(epoch, index, draws).numpy())

    def _build_images(self) -> Tensor:
        return self.images[: len(self.samples)]

    def build(self) -> Batch:
        epochs, indices = np.array(self.samples, dtype=np.int64).reshape(-1, 2).T
        labels = self.dataset.split.labels[indices]
        return Batch(
            images=self._build_images(),
            labels=labels if isinstance(labels, SparseLabels) else torch.from_numpy(labels),
            indices=torch.from_numpy(indices.copy()),
            epochs=torch.from_numpy(epochs.copy()),
            failures=tuple(self.failures),
        )

    def build_empty(self) -> Batch:
        """Return a batch of the failures alone."""
        self.samples.clear()
        return self.build()


class CroppedBatchBuilder(BatchBuilder):
    """A batch of crops of a cache on a GPU: boxes are collected on the host, and cut and resized there at the end."""

    def __init__(self, dataset: SplitDataset, cache: ImageCache):
        assert isinstance(dataset.transform, TrainTransform)
        super().__init__(dataset, dataset.empty_batch(0))
        self.cache, self.transform = cache, dataset.transform
        self.boxes: list[list[int]] = []
        self.flips: list[bool] = []

    def _add_image(self, epoch: int, index: int, draws: Sequence[float] | None) -> None:
        size, draws = self.cache.size(index), draws or self.dataset.draw(epoch, index)
        self.boxes.append(self.transform.box(size, draws))
        self.flips.append(self.transform.flips(draws))

    def _build_images(self) -> Tensor:
        if not self.samples:
            return self.images
        crops = self.cache.crops([index for _, index in self.samples], self.boxes, self.flips)
        return self.cache.crop_resize(self.cache.pixels, crops, self.transform.image, self.cache.channels)


def new_builder(dataset: SplitDataset, count: int, images: Tensor | None = None) -> BatchBuilder:
    if dataset.cache is not None and dataset.cache.batched:
        return CroppedBatchBuilder(dataset, dataset.cache)
    return BatchBuilder(dataset, dataset.empty_batch(count) if images is None else images)


def first_images(dataset: SplitDataset, count: int) -> Tensor:
    """Return up to `count` images of the first epoch, without those that cannot be decoded."""
    count = min(count, len(dataset.split))
    builder = new_builder(dataset, count)
    for epoch, index in dataset.sampler().batch_indices(0, count):
        builder.add(epoch, index)
    return builder.build().images
