"""The comparison of an exported file with its segmentation model, on the same real images: pixels and scores.

An image that vitkit would cut into windows is compared as the file computes it, squashed as a whole.

Where the preprocessing rounds to whole grey levels, as timm's and transformers' do, a sum that ends at a half becomes
another level now and then, and the scores of its patch move by more than sums in another order do. That they do not
move masks but at a border, where two classes have nearly the same score, is compared all the same.

Shapes: K classes, h' x w' grid of scores, h x w image.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.compute.upsample import Size, tiles, upsample_tile
from vitkit.data.transforms import rounds_to_bytes
from vitkit.export.compare import BATCH, TOLERANCE, batches, with_crops
from vitkit.export.exported import ExportedModel
from vitkit.predict.samples import Pixels, Samples, check_not_empty
from vitkit.predict.segmentation import ImageSegmenter
from vitkit.progress import Progress, no_progress

GREY_LEVEL_TOLERANCE = 1e-2  # where inputs are rounded; Ti/16 on CamVid: 8e-4 at most


@dataclass(frozen=True, kw_only=True)
class MaskComparison:
    """The agreement of a file's masks and scores with those of its model.

    `same` and `agree` differ in ties: two classes whose scores the model itself can hardly tell apart.
    """

    images: int
    pixels: int  # of all images
    same: int  # pixels of the same class
    agree: int  # pixels of that class, or of another whose score is as high within the tolerance
    largest: float  # the largest difference of any score
    score: float  # the largest score, whatever its sign
    tolerance: float  # of it
    data: str  # which images
    sizes: int  # different sizes among them

    @property
    def equal(self) -> bool:
        return self.largest <= self.tolerance * max(self.score, 1) and self.agree == self.pixels

    @property
    def allowed(self) -> str:
        return f"{self.tolerance:.0e} of the largest score, {self.score:.2g}, and the same class at each pixel"

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.same / self.pixels}

    @property
    def description(self) -> str:
        return (
            f"{self.same:,} of {self.pixels:,} pixels the same, scores up to {self.score:.2g} within "
            f"{self.largest:.1e} ({self.images:,} images of {self.sizes:,} sizes; {self.data})"
        )


def compare_masks(
    segmenter: ImageSegmenter, file: ExportedModel, samples: Samples, progress: Progress = no_progress
) -> MaskComparison:
    """Compare a file with its model on the samples, and on crops of the first in sizes that they may lack."""
    rounds = rounds_to_bytes(segmenter.transform.preprocessing) and file.metadata["input"] != "tensor"
    counts = _Counts(GREY_LEVEL_TOLERANCE if rounds else TOLERANCE)
    decoded = progress(samples, len(samples), "comparing")
    for batch in batches((pixels for _, pixels in with_crops(decoded)), BATCH):
        exact = segmenter.compute.scores(torch.stack([segmenter.transform(pixels) for pixels in batch]))
        for pixels, scores, (mask, exported) in zip(batch, exact, file.masks(batch), strict=True):
            expected = segmenter.compute.of_scores(scores, (mask.shape[0], mask.shape[1])).mask
            counts.add(pixels, scores, expected, mask, exported)
    check_not_empty(samples, counts.images)
    return counts.result(samples.description)


class _Counts:
    """The sums of a comparison, image by image."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.images = self.pixels = self.same = self.agree = 0
        self.largest = self.score = 0.0
        self.sizes: set[tuple[int, ...]] = set()

    def add(
        self,
        pixels: Pixels,
        scores: Tensor,
        expected: NDArray[np.uint8],
        mask: NDArray[np.uint8],
        exported: NDArray[np.float32],
    ) -> None:
        self.images += 1
        self.pixels += mask.size
        self.sizes.add(pixels.shape[:2])
        difference = float(np.abs(exported - scores.numpy()).max())
        self.largest = max(self.largest, difference if np.isfinite(difference) else np.inf)
        self.score = max(self.score, float(scores.abs().max()))
        same = expected == mask
        self.same += int(same.sum())
        self.agree += int(same.sum() if same.all() else (same | _tied(scores, expected, mask, self.tolerance)).sum())

    def result(self, data: str) -> MaskComparison:
        counts = {name: value for name, value in vars(self).items() if name != "sizes"}
        return MaskComparison(**counts, data=data, sizes=len(self.sizes))


def _tied(scores: Tensor, expected: NDArray[np.uint8], mask: NDArray[np.uint8], tolerance: float) -> NDArray[np.bool_]:
    """Return the pixels at which the class of a mask has as high a score as the expected one: (h, w)."""
    size: Size = mask.shape[0], mask.shape[1]
    classes, allowed = len(scores), tolerance * max(float(scores.abs().max()), 1)
    tied = np.zeros(size, np.bool_)
    for rows, columns in tiles(classes, size):
        area = slice(*rows), slice(*columns)
        upsampled = upsample_tile(scores, size, rows, columns)
        best, chosen = (
            upsampled.gather(0, torch.from_numpy(one[area].astype(np.int64).clip(0, classes - 1))[None])[0]
            for one in (expected, mask)
        )
        tied[area] = ((best - chosen <= allowed).numpy()) & (mask[area] < classes)
    return tied
