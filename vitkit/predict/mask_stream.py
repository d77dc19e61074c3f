"""Masks of many images: decoded and squashed by threads, computed in batches, in order, never all in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.compute.upsample import Size
from vitkit.compute.windows import is_large
from vitkit.data.decode import decode
from vitkit.data.sources.dataset import DataError, Split
from vitkit.data.threads import map_in_threads
from vitkit.errors import DecodeError
from vitkit.predict.segmentation import ImageSegmenter, SegmentedImage
from vitkit.progress import Progress, no_progress

DOING = "segmenting"


def stream_masks(
    segmenter: ImageSegmenter,
    split: Split,
    *,
    start: int = 0,
    batch: int,
    threads: int = 0,
    progress: Progress = no_progress,
) -> Iterator[SegmentedImage]:
    """Yield the segmented images from index `start` on, in order; unreadable ones have an error.

    Batches begin where they would in one go, for the last bits of a product depend on the batch that it is computed in.
    """
    first = start - start % batch
    images = _segmented(segmenter, split, range(first, len(split)), batch, threads)
    for _ in range(start - first):
        next(images)
    yield from progress(images, len(split) - start, DOING)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """An image as the model takes it, or why it cannot be read; a large one is decoded again when its turn comes."""

    size: Size | None
    image: Tensor | None
    error: str | None = None


def _segmented(
    segmenter: ImageSegmenter, split: Split, indices: range, batch: int, threads: int
) -> Iterator[SegmentedImage]:
    prepare = partial(_prepare, segmenter, split)
    waiting: list[tuple[int, _Prepared]] = []
    for index, prepared in zip(indices, map_in_threads(prepare, indices, threads=threads), strict=True):
        waiting.append((index, prepared))
        if len(waiting) == batch or index == indices[-1]:
            yield from _compute(segmenter, split, waiting)
            waiting = []


def _compute(segmenter: ImageSegmenter, split: Split, waiting: list[tuple[int, _Prepared]]) -> Iterator[SegmentedImage]:
    images = [prepared.image for _, prepared in waiting if prepared.image is not None]
    scores = iter(segmenter.compute.scores(torch.stack(images)) if images else ())
    for index, prepared in waiting:
        name = split.keys[index]
        if prepared.size is None:
            yield segmenter.segmented(name=name, error=prepared.error)
        elif prepared.image is not None:
            yield segmenter.segmented(segmenter.compute.of_scores(next(scores), prepared.size), name=name)
        else:
            try:
                yield segmenter.segmented(segmenter.compute(read_pixels(segmenter, split, index)), name=name)
            except (DecodeError, DataError) as error:
                yield segmenter.segmented(name=name, error=str(error))


def read_pixels(segmenter: ImageSegmenter, split: Split, index: int) -> NDArray[Any]:
    """Return an image of the split as the segmenter sees it, (h, w, C)."""
    pixels: NDArray[Any] = decode(split.read(index), channels=segmenter.preprocess.channels)
    return pixels


def _prepare(segmenter: ImageSegmenter, split: Split, index: int) -> _Prepared:
    try:
        pixels = read_pixels(segmenter, split, index)
    except (DecodeError, DataError) as error:
        return _Prepared(None, None, _reason(error, split.keys[index]))
    size = (pixels.shape[0], pixels.shape[1])
    large = is_large(size, segmenter.compute.trained_size)
    return _Prepared(size, None if large else segmenter.transform(np.ascontiguousarray(pixels)))


def _reason(error: Exception, name: str) -> str:
    """Return why an image cannot be read, without its name, which its row has already."""
    return str(error).removeprefix(f"{name} cannot be read: ").removesuffix(".")
