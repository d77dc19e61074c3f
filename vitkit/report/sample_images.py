"""Images of the scored split in a report: the worst mistakes, and samples before and after preprocessing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitkit.data.sources.dataset import Split
from vitkit.data.transforms import EvalTransform
from vitkit.evaluate.evaluation import Mistake
from vitkit.pages.inline_images import ImagePair, InlineImage, decode_sample, inline_image, sample_indices

MISTAKES = 24


@dataclass(frozen=True)
class ShownMistake:
    mistake: Mistake
    image: InlineImage | None  # None: it cannot be read any more


def preprocessing_pairs(split: Split, transform: EvalTransform, channels: int) -> list[ImagePair]:
    """Return a few images as stored, though upright, and as the model gets them; broken ones are skipped."""
    pairs = []
    for index in sample_indices(split):
        pixels = decode_sample(split, index, channels)
        if pixels is not None:
            resized = inline_image(_resize(transform, pixels))
            pairs.append(ImagePair(split.keys[index], inline_image(pixels), resized))
    return pairs


def worst_mistakes(
    mistakes: Sequence[Mistake], split: Split, transform: EvalTransform, channels: int
) -> list[ShownMistake]:
    return [ShownMistake(mistake, _inline(mistake, split, transform, channels)) for mistake in mistakes[:MISTAKES]]


def _inline(mistake: Mistake, split: Split, transform: EvalTransform, channels: int) -> InlineImage | None:
    # a split other than the scored one has other images at the same indices
    if mistake.index >= len(split) or split.keys[mistake.index] != mistake.key:
        return None
    pixels = decode_sample(split, mistake.index, channels)
    return None if pixels is None else inline_image(_resize(transform, pixels))


def _resize(transform: EvalTransform, pixels: np.ndarray) -> np.ndarray:
    return transform.resize_only(pixels).permute(1, 2, 0).numpy()
