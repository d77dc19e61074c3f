"""Images → batches: the same batches in the same order for any number of workers, from any step on.

The loader names an image that cannot be decoded and replaces it with the next one in the split that can; when too many
fail, it raises an error instead of training on the rest. Each rank counts its own failures; under torchrun the training
loop adds them up.

Shapes: B this rank's share of a batch, C channels, K classes.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from vitkit.data.batch import Batch as Batch
from vitkit.data.epoch_order import Order, OrderOfEpoch, full_order
from vitkit.data.image_cache import ImageCache
from vitkit.data.sample import decode_sample
from vitkit.data.sources.dataset import DataError, Split
from vitkit.data.sparse_labels import SparseLabels
from vitkit.data.threads import load_in_threads
from vitkit.data.transforms import EvalTransform, TrainTransform
from vitkit.data.workers import CAN_FORK, load_batches
from vitkit.errors import TOO_MANY_FAILED, ConfigError, DecodeError
from vitkit.text import printable

MAX_FAILED = 0.01  # share of the images that may fail to decode, where the user does not say
# Threads hold the interpreter's lock for a third of a crop's time: on 16 cores, 15 of them crop 4,281 images a second,
# and 15 processes that even decode them 12,929. Forked processes share the memory of the cache.
MAX_THREADS = 2
MAX_REPLACEMENTS = 100  # images tried in place of one that cannot be decoded

log = logging.getLogger("vitkit")


class TooManyFailures(DataError):
    """More images than the allowed share could not be decoded."""

    exit_code = TOO_MANY_FAILED
    share = 0.0  # of all images, so far


def allowed_failures(images: int, max_failed: float) -> int:
    """Return how many of the images may fail: the share `max_failed` of them.

    A share above 0 allows one also in sets so small that one is more than the share, and a share below 1 never all.
    """
    share = math.floor(max_failed * images + 1e-9)  # 0.29 · 100 is less than 29 in floats
    return min(max(share, 1), images - 1) if 0 < max_failed < 1 else share


def advised_max_failed(share: float) -> float:
    """Return a `max_failed` that allows this share of failures, and up to twice as many."""
    return min(math.ceil(20 * share - 1e-9) / 10, 1.0)


def too_many_failures(failed: int, images: int, allowed: float, such_as: Sequence[str] = ()) -> TooManyFailures:
    error = TooManyFailures(
        f"{failed} of {images:,} images could not be decoded so far, more than {allowed:.1%}.",
        **({"such_as": such_as} if such_as else {}),
        try_="vitkit check lists all of them",
    )
    error.share = failed / images
    return error


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

    def sample(self, count: int) -> Tensor:
        """Return up to `count` images of the first epoch, without those that cannot be decoded."""
        count = min(count, len(self.split))
        builder = _new_builder(self, count)
        for epoch, index in self.sampler().batch_indices(0, count):
            builder.add(epoch, index)
        return builder.build().images


@dataclass
class EpochSampler:
    """A sampler of n images, shuffled anew in each epoch: a pure function of the seed and a sample number.

    Epochs follow one another without a break: sample s is image order(s // n)[s % n], and a step's batch is the samples
    [step · batch, (step + 1) · batch). Ranks take equal slices of it. So any step can be computed alone.
    """

    images: int
    seed: int = 0
    order: OrderOfEpoch | None = None  # None: a permutation of all images
    _current: tuple[int, Order | None] = field(default=(-1, None), repr=False)

    def __call__(self, sample: int) -> tuple[int, int]:
        """Return the (epoch, image index) of a sample number."""
        return self.samples(sample, sample + 1)[0]

    def samples(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the (epoch, image index) pairs of successive sample numbers."""
        epochs, positions = np.divmod(np.arange(first, stop), self.images)
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            indices[epochs == epoch] = self._order(epoch)(positions[epochs == epoch])
        return list(zip(epochs.tolist(), indices.tolist(), strict=True))

    def batch_indices(self, step: int, batch_size: int, rank: int = 0, world_size: int = 1) -> list[tuple[int, int]]:
        """Return the (epoch, image index) pairs of one rank's share of a step."""
        share = batch_size // world_size
        first = step * batch_size + rank * share
        return self.samples(first, first + share)

    def _order(self, epoch: int) -> Order:
        kept, order = self._current  # one tuple: other threads may replace it
        if epoch != kept or order is None:  # one epoch's order is kept: sequential access computes each once
            order = full_order(self.images, self.seed, epoch) if self.order is None else self.order(epoch)
            self._current = epoch, order
        return order


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
        builder = _new_builder(self.dataset.read_ahead(indices), len(samples), images)
        for (epoch, index), draws in zip(samples, TrainTransform.draw(self.dataset.seed, epochs, indices), strict=True):
            if not self._add_or_replace(builder, epoch, index, draws):
                return builder.build_empty()
        return builder.build()

    def _add_or_replace(self, builder: _BatchBuilder, epoch: int, index: int, draws: Sequence[float]) -> bool:
        """Add the image, or the next one in the split that can be decoded; return whether there was one."""
        count = len(self.dataset.split)
        return builder.add(epoch, index, draws) or any(
            builder.add(epoch, (index + offset) % count) for offset in range(1, min(count, MAX_REPLACEMENTS))
        )


def evaluation_batches(
    dataset: SplitDataset,
    batch_size: int,
    *,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    pin_memory: bool = False,
    max_failed: float = MAX_FAILED,
    images: int | None = None,
    part: int | None = None,
    lend: int = 0,
    threads: int = 0,
) -> Iterator[Batch]:
    """Yield every image of the split once, in order; batches list the images that cannot be decoded as failures.

    A batch may be empty. If more than `max_failed` of the images fail, this raises an error: a score over the rest
    would mislead. The share is of `images` where the split is a part of them.
    """
    batches = sequential_batches(
        dataset,
        batch_size,
        workers=workers,
        rank=rank,
        world_size=world_size,
        pin_memory=pin_memory,
        part=part,
        lend=lend,
        threads=threads,
    )
    yield from checked_batches(batches, dataset.split, max_failed, images)


def checked_batches(
    batches: Iterable[Batch], split: Split, max_failed: float, images: int | None = None
) -> Iterator[Batch]:
    """Yield the batches of a pass over the split; log their failures, and raise an error when there are too many."""
    failures: dict[int, str] = {}
    for batch in batches:
        record_failures(failures, batch, split, max_failed, images)
        yield batch


def sequential_batches(
    dataset: SplitDataset,
    batch_size: int,
    *,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    pin_memory: bool = False,
    part: int | None = None,
    lend: int = 0,
    threads: int = 0,
) -> Generator[Batch, None, None]:
    """Yield every image of the split once, in order, however many fail: the caller handles the failures.

    With `part`, a batch comes in parts of at most so many images, which workers decode side by side. `lend` is that of
    `load_batches`. With `threads`, this process decodes with so many instead of in workers.
    """
    own = range(rank, len(dataset.split), world_size)
    batches = (own[first : first + batch_size] for first in range(0, len(own), batch_size))
    size = part or batch_size
    chunks = [batch[first : first + size] for batch in batches for first in range(0, len(batch), size)]
    if chunks and threads:
        yield from load_in_threads(
            _EvalBatches(dataset, chunks), range(len(chunks)), threads=threads, pin_memory=pin_memory
        )
    elif chunks:
        yield from load_batches(
            _EvalBatches(dataset, chunks),
            range(len(chunks)),
            dataset.empty_batch(len(chunks[0])),
            workers=workers,
            pin_memory=pin_memory,
            lend=lend,
        )


def record_failures(
    known: dict[int, str], batch: Batch, split: Split, max_failed: float, images: int | None = None
) -> None:
    """Add the batch's failures to the known ones, log each once, and raise an error when there are too many."""
    for index, reason in batch.failures:
        if index not in known:
            known[index] = reason
            log.warning("skipped: %s: %s", split.keys[index], reason)
    images = len(split) if images is None else images
    if len(known) > allowed_failures(images, max_failed):
        shown = [f"{split.keys[index]}: {reason}" for index, reason in list(known.items())[:5]]
        raise too_many_failures(len(known), images, max_failed, shown)


class _EvalBatches:
    """The batch function of evaluation: chunk number → its batch."""

    def __init__(self, dataset: SplitDataset, chunks: Sequence[Sequence[int]]):
        self.dataset, self.chunks = dataset, chunks

    def __call__(self, number: int, images: Tensor | None = None) -> Batch:
        chunk = self.chunks[number]
        dataset = self.dataset.read_ahead(chunk)
        builder = _BatchBuilder(dataset, dataset.empty_batch(len(chunk)) if images is None else images)
        for index in chunk:
            builder.add(0, index)
        return builder.build()


class _BatchBuilder:
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


class _CroppedBatchBuilder(_BatchBuilder):
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


def _new_builder(dataset: SplitDataset, count: int, images: Tensor | None = None) -> _BatchBuilder:
    if dataset.cache is not None and dataset.cache.batched:
        return _CroppedBatchBuilder(dataset, dataset.cache)
    return _BatchBuilder(dataset, dataset.empty_batch(count) if images is None else images)


def failure_reason(error: Exception, key: str) -> str:
    """Return the error's first line without the image's name, which callers print next to it."""
    return str(error).splitlines()[0].removeprefix(f"{printable(key)} ")
