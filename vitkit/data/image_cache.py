"""Decoded images kept in memory: every image is decoded once, and random crops are taken of it from then on.

Images are packed one behind the other as (h, w, C) uint8, each at its own size, so they take the sum of their bytes.
What is kept is what `TrainTransform.prepare` makes of an image, so a crop of it is the one that decoding again gives.
An image that cannot be decoded is kept as its error, which is raised whenever the image is asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.data.crop_resize import CropResize, Crops, crop_resize
from vitkit.data.decode import decoded_size
from vitkit.data.resize import Size
from vitkit.data.sample import decode_sample
from vitkit.data.sources.dataset import DataError, Split
from vitkit.data.transforms import TrainTransform
from vitkit.errors import DecodeError
from vitkit.progress import Progress, no_progress

# Times the longer side of the model's input: the short side at which larger images are kept. The crop of the whole
# image needs 1. At 2, crops of a quarter of the area or more are still reduced, never enlarged; with the paper's 5 to
# 100 % of the area these are four of five. Photos of 500 x 400 are kept as they are for 200 pixels and above.
STORED_SIDE = 2
SAMPLE = 200  # images whose sizes tell how much memory all of them need
IMAGES_PER_TASK = 16


def stored_transform(transform: TrainTransform) -> TrainTransform:
    """Return the transform of a run whose images a cache keeps, which has large images at a smaller size."""
    if transform.crop is None or transform.precrop is not None:
        return transform  # these resize every image to one size before the random part: nothing changes
    return replace(transform, shrink=STORED_SIDE * max(transform.image))


def estimate_bytes(split: Split, transform: TrainTransform, channels: int, *, seed: int = 0) -> int | None:
    """Return about how many bytes the cache of a split takes, the same in every process; None if no header is readable.

    The sizes are those of a seeded sample, from headers.
    """
    chosen = np.random.default_rng(seed).choice(len(split), min(SAMPLE, len(split)), replace=False)
    chosen = np.sort(chosen)
    ahead, areas = split.read_ahead(chosen.tolist()), []
    for index in chosen:
        try:
            height, width = transform.prepared_size(decoded_size(ahead.read(int(index))))
        except (DataError, DecodeError):  # the loader reports it
            continue
        areas.append(height * width)
    return round(float(np.mean(areas)) * (channels + transform.masks) * len(split)) if areas else None


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageCache:
    """The prepared images of a split, in host memory or in that of a GPU."""

    pixels: Tensor  # (bytes,) uint8
    offsets: NDArray[np.int64]  # (n,) where each image begins
    sizes: NDArray[np.int64]  # (n, 2) height and width; 0 for an image that cannot be decoded
    channels: int
    errors: dict[int, str] = field(default_factory=dict)  # of the images that cannot be decoded
    batched: bool = False  # the crops of a batch are taken at once, where the pixels are: on a GPU
    crop_resize: CropResize = crop_resize  # takes them; a GPU may have a faster one

    @property
    def device(self) -> torch.device:
        return self.pixels.device

    def size(self, index: int) -> Size:
        """Return the height and width of a kept image, or raise the error that its decoding ended with."""
        if index in self.errors:
            raise DecodeError(self.errors[index])
        height, width = self.sizes[index].tolist()
        return height, width

    def __getitem__(self, index: int) -> np.ndarray:
        """Return a prepared image (h, w, C) without a copy; only where the cache is in host memory."""
        height, width = self.size(index)
        first = int(self.offsets[index])
        packed: np.ndarray = self.pixels[first : first + height * width * self.channels].numpy()
        return packed.reshape(height, width, self.channels)

    def crops(self, indices: Sequence[int], boxes: Sequence[Sequence[int]], flips: Sequence[bool]) -> Crops:
        """Return the boxes (left, top, right, bottom) of these images as `crop_resize` takes them, on the device."""
        left, top, right, bottom = np.array(boxes, dtype=np.int64).reshape(-1, 4).T
        rows = np.array(indices, dtype=np.int64)
        stride = self.sizes[rows, 1] * self.channels
        start = self.offsets[rows] + top * stride + left * self.channels
        table = np.stack([start, stride, bottom - top, right - left, np.array(flips, dtype=np.int64)])
        columns = torch.from_numpy(table).to(self.device, non_blocking=True)  # small, so the host does not wait
        return Crops(
            start=columns[0],
            stride=columns[1],
            height=columns[2],
            width=columns[3],
            flipped=columns[4].bool(),
            most=(int((bottom - top).max()), int((right - left).max())),
        )

    def to(self, device: torch.device, crop_resize: CropResize = crop_resize) -> ImageCache:
        """Return the cache in the memory of a GPU."""
        return replace(self, pixels=self.pixels.to(device), batched=True, crop_resize=crop_resize)


def fill_cache(
    split: Split,
    transform: TrainTransform,
    channels: int,
    *,
    budget: int,
    threads: int,
    progress: Progress = no_progress,
) -> ImageCache | None:
    """Decode every image of the split into host memory; None if they take more than `budget` bytes.

    Decoding and resizing release the GIL, so threads are enough. The memory is that of the images: what is reserved
    beyond is never written to, and the system provides no page for it.
    """
    try:
        filling = _Filling(split, transform, channels, budget)
    except MemoryError:  # a limit on the address space
        return None
    pool = ThreadPoolExecutor(max(threads, 1))
    try:
        tasks = [
            range(first, min(first + IMAGES_PER_TASK, len(split))) for first in range(0, len(split), IMAGES_PER_TASK)
        ]
        for _ in progress(pool.map(filling.add, tasks), len(split), "decoding", lambda count: count):
            if filling.overflowed:
                return None
    finally:
        filling.cancelled = True  # where an exception or Ctrl-C ends this, tasks that run end at their next image
        pool.shutdown(cancel_futures=True)
    return None if filling.overflowed else filling.finish()


class _Filling:
    """A cache that several threads fill; the order of its images in memory is that in which they were decoded."""

    def __init__(self, split: Split, transform: TrainTransform, channels: int, budget: int):
        self.split, self.transform, self.channels = split, transform, channels
        self.buffer = np.empty(budget, dtype=np.uint8)
        self.used, self.lock = 0, threading.Lock()
        self.offsets = np.zeros(len(split), dtype=np.int64)
        self.sizes = np.zeros((len(split), 2), dtype=np.int64)
        self.errors: dict[int, str] = {}
        self.overflowed = self.cancelled = False

    def add(self, indices: range) -> int:
        """Decode and keep these images, unless memory has run out; return their number."""
        split = self.split.read_ahead(indices)
        for index in indices:
            if self.overflowed or self.cancelled:
                break
            try:
                sample = decode_sample(split, index, self.channels, masks=self.transform.masks)
                pixels = self.transform.prepare(sample)
            except (DecodeError, DataError) as error:
                self.errors[index] = str(error)
                continue
            with self.lock:
                first = self.used
                self.used = stop = first + pixels.size
            if stop > len(self.buffer):
                self.overflowed = True
                break
            self.offsets[index], self.sizes[index] = first, pixels.shape[:2]
            self.buffer[first:stop].reshape(pixels.shape)[:] = pixels
        return len(indices)

    def finish(self) -> ImageCache:
        return ImageCache(
            pixels=torch.from_numpy(self.buffer[: self.used]),
            offsets=self.offsets,
            sizes=self.sizes,
            channels=self.channels + self.transform.masks,
            errors=self.errors,
        )
