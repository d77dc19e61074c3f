"""The mask of an image: pixels → class scores → a class for every pixel of the image, at its own size.

Evaluation, prediction, serving and the comparison of exported files all compute masks here. An image is squashed to the
model's input as a whole; one with more than four times the pixels of the training images is cut into windows of their
size (`vitkit.compute.windows`).

Shapes: B images, C channels, K classes, h' x w' grid of scores, h x w image.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitkit.compute.upsample import (
    TILE,
    OnTile,
    Size,
    Span,
    ToProbabilities,
    shares,
    softmax,
    upsample_mask,
    upsample_mask_and_probability,
)
from vitkit.compute.windows import ComputeBand, is_large, mask_of_windows, window_count
from vitkit.data.preprocessing import Preprocessing
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError
from vitkit.model.segmenter import Segmenter

# (B, C, height, width) float32, preprocessed, anywhere → (B, K, h', w') float32 where they are computed
ComputeScores = Callable[[Tensor], Tensor]

BATCH = 8  # windows that are computed at a time


@dataclass(frozen=True, eq=False)
class PredictedMask:
    mask: NDArray[np.uint8]  # (h, w)
    windows: int  # that the image was cut into; 1: squashed as a whole
    probability: NDArray[np.float32] | None = None  # (h, w) of each pixel's class, where it was asked for


@dataclass(frozen=True, kw_only=True, eq=False)
class ComputeMask:
    """The computation of masks by one model."""

    scores: ComputeScores
    transform: EvalTransform
    trained_size: Size | None = None  # median height and width of the training images; None: no image is cut
    to_probabilities: ToProbabilities | None = None  # None: no probabilities
    batch: int = BATCH
    tile: int = TILE

    def __post_init__(self) -> None:
        check_geometry(self.transform.preprocessing)

    def __call__(self, pixels: NDArray[Any]) -> PredictedMask:
        """Return the mask of an image (h, w, C), uint8 or float32 on 0 to 255."""
        size = (pixels.shape[0], pixels.shape[1])
        if is_large(size, self.trained_size):
            return self._in_windows(pixels, size)
        return self.of_scores(self.scores(self.transform(pixels)[None])[0], size)

    def of_scores(self, scores: Tensor, size: Size, on_tile: OnTile | None = None) -> PredictedMask:
        """Return the mask of an image of this size that was squashed as a whole, from its scores (K, h', w')."""
        options: Any = {"tile": self.tile, "on_tile": on_tile}
        with torch.inference_mode():
            if self.to_probabilities is None:
                return PredictedMask(self.on_device(scores, size, on_tile).cpu().numpy(), 1)
            mask, probability = upsample_mask_and_probability(scores, size, self.to_probabilities, **options)
            return PredictedMask(mask.cpu().numpy(), 1, probability.cpu().numpy())

    def on_device(self, scores: Tensor, size: Size, on_tile: OnTile | None = None) -> Tensor:
        """Return the mask of an image that was squashed as a whole where its scores are, without waiting for it."""
        with torch.inference_mode():
            return upsample_mask(scores, size, tile=self.tile, on_tile=on_tile)

    def of_windows(self, size: Size, band: ComputeBand, on_tile: OnTile | None = None) -> PredictedMask:
        """Return the mask of an image of this size that is cut into windows, from the scores of rows of windows."""
        assert self.trained_size is not None
        mask = torch.empty(size, dtype=torch.uint8)
        probability = None if self.to_probabilities is None else torch.empty(size)
        options: Any = {"tile": self.tile, "on_tile": on_tile}
        with torch.inference_mode():
            mask_of_windows(size, self.trained_size, band, mask, probability, self.to_probabilities, **options)
        return PredictedMask(mask.numpy(), self.windows(size), None if probability is None else probability.numpy())

    def windows(self, size: Size) -> int:
        """Return the number of windows of an image of this size."""
        return window_count(size, self.trained_size)

    def _in_windows(self, pixels: NDArray[Any], size: Size) -> PredictedMask:
        def band(rows: Span, columns: Sequence[Span]) -> list[Tensor]:
            windows = (pixels[slice(*rows), slice(*span)] for span in columns)
            return [scores for batch in _batches(windows, self.batch) for scores in self._scores_of(batch)]

        return self.of_windows(size, band)

    def _scores_of(self, windows: Sequence[NDArray[Any]]) -> Tensor:
        return self.scores(torch.stack([self.transform(window) for window in windows]))


def check_geometry(preprocessing: Preprocessing) -> None:
    """Raise a ConfigError where a mask could not be resized back to the image: only a squash shows all of it."""
    if preprocessing.resize != "squash" or preprocessing.crop != 1:
        shown = preprocessing.resize if preprocessing.resize != "squash" else f"a crop of {preprocessing.crop:g}"
        raise ConfigError(
            f"masks need whole images, squashed to the model's input; this preprocessing has {shown}",
            try_="--resize squash --crop 1",
        )


def exact_scores(model: nn.Module, device: torch.device, dtype: torch.dtype = torch.float32) -> ComputeScores:
    """Return the model's scores in this precision, on the device; in float32 it shares the model's weights."""
    computing = model if dtype == torch.float32 else copy.deepcopy(model).to(dtype)
    computing = computing.to(device).eval()

    def scores(images: Tensor) -> Tensor:
        with torch.inference_mode():
            computed: Tensor = computing(images.to(device, dtype, non_blocking=True)).float()
            return computed

    return scores


def probabilities_of_scores(model: Segmenter) -> ToProbabilities:
    """Return how scores become probabilities: a linear head's are logits, those of queries sums of probabilities."""
    return softmax if model.config.head == "linear" else shares


def trained_size(provenance: Mapping[str, Any]) -> Size | None:
    """Return the median height and width of the training images, where a model's provenance has them."""
    size = provenance.get("trained_size")
    if not isinstance(size, list | tuple) or len(size) != 2 or not all(type(side) is int and side > 0 for side in size):
        return None
    return size[0], size[1]


def _batches(items: Iterator[NDArray[Any]], size: int) -> Iterator[list[NDArray[Any]]]:
    batch: list[NDArray[Any]] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
