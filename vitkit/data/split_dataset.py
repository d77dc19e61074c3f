"""The images of a split as tensors, one at a time: decoded, or taken from a cache, and transformed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vitkit.data.epoch_order import OrderOfEpoch
from vitkit.data.epoch_sampler import EpochSampler
from vitkit.data.image_cache import ImageCache
from vitkit.data.sample import decode_sample
from vitkit.data.sources.dataset import Split
from vitkit.data.transforms import EvalTransform, TrainTransform


@dataclass(frozen=True, kw_only=True)
class SplitDataset:
    """The images of a split, decoded and transformed; without a cache picklable, so that workers can have it."""

    split: Split
    transform: EvalTransform | TrainTransform
    channels: int = 3
    seed: int = 0
    cache: ImageCache | None = None  # the images as TrainTransform.prepare returned them
    order: OrderOfEpoch | None = None  # of the images of each epoch; None: a permutation of all

    def __call__(self, epoch: int, index: int, draws: Sequence[float] | None = None) -> Tensor:
        """Return one transformed image; `draws` are TrainTransform.draw's for it, if the caller has them already."""
        if not isinstance(self.transform, TrainTransform):
            return self.transform(self._decode(index))
        prepared = self.transform.prepare(self._decode(index)) if self.cache is None else self.cache[index]
        return self.transform.view(prepared, draws or self.draw(epoch, index))

    def _decode(self, index: int) -> np.ndarray:
        return decode_sample(self.split, index, self.channels, masks=self.transform.masks)

    def read_ahead(self, indices: Sequence[int]) -> SplitDataset:
        """Return the dataset with requests for these images under way, if they come over a network."""
        split = self.split if self.cache is not None else self.split.read_ahead(indices)
        return self if split is self.split else replace(self, split=split)

    def draw(self, epoch: int, index: int) -> list[float]:
        return TrainTransform.draw(self.seed, epoch, [index])[0]

    def sampler(self) -> EpochSampler:
        return EpochSampler(len(self.split), self.seed, self.order)

    def empty_batch(self, count: int) -> Tensor:
        """Return uninitialised memory for that many images."""
        dtype = torch.uint8 if isinstance(self.transform, TrainTransform) else torch.float32
        return torch.empty(count, self.channels + self.transform.masks, *self.transform.image, dtype=dtype)
