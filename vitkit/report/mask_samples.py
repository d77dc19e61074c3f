"""Images of the scored split in a segmentation report: the ground-truth mask, the predicted one, and where they differ.

Shapes: (h, w, C) pixels on 0 to 255, (h, w) masks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.masks.ignore import IGNORE
from vitkit.data.masks.palette import Palette, default_palette
from vitkit.data.sources.dataset import DataError, Split
from vitkit.errors import DecodeError
from vitkit.evaluate.segmentation_confusions import largest_errors
from vitkit.evaluate.segmentation_evaluation import MaskScore, SegmentationEvaluation
from vitkit.evaluate.segmentation_scores import MaskCounts
from vitkit.pages.inline_images import InlineImage, decode_sample, inline_image
from vitkit.pages.mask_overlay import as_rgb, draw_errors, draw_mask, shrink_mask
from vitkit.text import percent

WORST = 8  # images that are shown; evaluation.json names more
LARGEST = 320  # pixels of a shown image along its longer side
QUALITY = 80
NAMED = 2  # confusions that are named below an image

PredictMask = Callable[[NDArray[Any]], NDArray[np.uint8]]  # pixels (h, w, C) of an image → its mask (h, w)


@dataclass(frozen=True)
class ShownMasks:
    """An image with its masks, as a page shows them side by side."""

    score: MaskScore
    image: InlineImage
    target: InlineImage
    predicted: InlineImage
    wrong: InlineImage
    numbers: frozenset[int]  # the classes in either mask
    errors: tuple[str, ...]  # "12.3 % of its pixels: road taken for sidewalk"


def shown_masks(
    scores: Sequence[MaskScore],
    split: Split,
    evaluation: SegmentationEvaluation,
    predict_mask: PredictMask,
    channels: int,
) -> list[ShownMasks]:
    """Return the images that can still be read, in their order, each with its masks."""
    shown = (_show(score, split, evaluation, predict_mask, channels) for score in scores)
    return [one for one in shown if one is not None]


def class_numbers(shown: Iterable[ShownMasks]) -> list[int]:
    """Return the numbers of the classes that the shown masks have."""
    return sorted({number for one in shown for number in one.numbers})


def colours(evaluation: SegmentationEvaluation) -> Palette:
    return evaluation.palette or default_palette(len(evaluation.classes))


def _show(
    score: MaskScore,
    split: Split,
    evaluation: SegmentationEvaluation,
    predict_mask: PredictMask,
    channels: int,
) -> ShownMasks | None:
    # a split other than the scored one has other images at the same indices
    if score.index >= len(split) or split.keys[score.index] != score.key:
        return None
    pixels = decode_sample(split, score.index, channels)
    if pixels is None:
        return None
    size = (pixels.shape[0], pixels.shape[1])
    try:
        target = split.read_mask(score.index, size)
    except (DecodeError, DataError):
        return None
    predicted = predict_mask(pixels)
    counts = MaskCounts(len(evaluation.classes))
    counts.add(0, predicted, target)
    errors = tuple(
        f"{percent(share)} of its pixels: {evaluation.classes[truth]} taken for {evaluation.classes[prediction]}"
        for truth, prediction, share in largest_errors(counts.confusion, NAMED)
    )
    small, small_target, small_predicted = _shrunk(pixels, target, predicted)
    palette = colours(evaluation)
    return ShownMasks(
        score,
        _inline(small),
        _inline(draw_mask(small, small_target, palette)),
        _inline(draw_mask(small, small_predicted, palette)),
        _inline(draw_errors(small, small_predicted, small_target)),
        frozenset(np.unique(np.concatenate([small_target, small_predicted])).tolist()) - {IGNORE},
        errors,
    )


def _shrunk(
    pixels: NDArray[Any], target: NDArray[np.uint8], predicted: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Return an image and its masks at the size at which they are shown; masks are drawn after that, to stay sharp."""
    image = Image.fromarray(np.ascontiguousarray(as_rgb(pixels)))
    image.thumbnail((LARGEST, LARGEST), Image.Resampling.BICUBIC)
    small = np.asarray(image)
    size = (small.shape[0], small.shape[1])
    return small, shrink_mask(target, size), shrink_mask(predicted, size)


def _inline(pixels: NDArray[np.uint8]) -> InlineImage:
    return inline_image(pixels, LARGEST, QUALITY)
