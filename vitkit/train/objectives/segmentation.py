"""Segmentation: a class for every pixel, by a linear head on patches or by mask queries.

Shapes: B images, C channels, K classes, h' x w' grid of scores. Targets are class numbers (B, height, width), uint8,
with IGNORE for pixels that count nowhere.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data.masks.ignore import IGNORE
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.model.mask_queries import QueryPrediction
from vitkit.model.segmenter import Segmenter
from vitkit.train.objectives.base import LossAndMetrics, Objective
from vitkit.train.objectives.mask_losses import set_loss
from vitkit.train.objectives.mask_matching import check_solver

ANNEALING_POWER = 0.9


class Segmentation(Objective):
    """An objective of segmentation, with linear head or mask queries."""

    model: Segmenter

    def __init__(self, model: Model):
        if not isinstance(model, Segmenter):
            raise ConfigError(
                f"segmentation needs a model that gives every pixel a class, and this is {model.kind}",
                try_="a Vision Transformer with a head for segmentation, such as Ti/16+linear or Ti/16+queries",
            )
        super().__init__(model, class_token_only=False)

    def example_targets(self, count: int) -> Tensor:
        """Return masks in which every class has a stripe: a set loss takes memory for each class of an image."""
        height, width = self.model.config.image
        stripes = torch.arange(width, device=self.mean.device) * self.model.config.classes // width
        return stripes.clamp(max=IGNORE - 1).to(torch.uint8).expand(count, height, width).contiguous()


class PixelLabels(Segmentation):
    """Cross-entropy of every pixel that is not ignored, with scores upsampled to the size of the mask."""

    def forward(self, pixels: Tensor, targets: Tensor) -> LossAndMetrics:
        scores = self.model(self.normalise(pixels)).float()  # the loss in fp32 whatever the model computes in
        loss = pixel_loss(scores, targets)
        return loss, {"pixel_accuracy": pixel_accuracy(scores.detach(), targets)}


def pixel_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of scores (B, K, h', w') summed over labelled pixels, divided by the number of all.

    Images with many ignored pixels count less, as their pixels do, so equal micro-batches average to the full batch,
    and a batch in which all pixels are ignored has a loss of 0.
    """
    height, width = targets.shape[1:]
    rows = interpolation_matrix(scores.shape[2], height, scores)
    columns = interpolation_matrix(scores.shape[3], width, scores)
    upsampled = rows @ (scores @ columns.T)
    return F.cross_entropy(upsampled, targets.long(), ignore_index=IGNORE, reduction="sum") / targets.numel()


def interpolation_matrix(cells: int, pixels: int, like: Tensor) -> Tensor:
    """Return (pixels, cells): how much each cell counts for each pixel, as F.interpolate has it with mode="bilinear".

    Products with two of them upsample as it does. On an H200 the backward pass of F.interpolate took two fifths of a
    step of Ti/16 at 352 x 480 px, and it adds in another order every time.
    """
    centres = (torch.arange(pixels, dtype=like.dtype, device=like.device) + 0.5) * (cells / pixels) - 0.5
    distance = (centres.clamp(0, cells - 1)[:, None] - torch.arange(cells, device=like.device)).abs()
    return (1 - distance).clamp(min=0)


def pixel_accuracy(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the share of labelled pixels whose class has the highest score, 1 where none is labelled.

    Targets are read at the centres of the scores' cells: an estimate while training.
    """
    nearest = F.interpolate(targets[:, None], scores.shape[2:], mode="nearest-exact")[:, 0]
    labelled = nearest != IGNORE
    wrong = (scores.argmax(dim=1) != nearest) & labelled
    return 1 - wrong.sum() / labelled.sum().clamp(min=1)


class MaskSet(Segmentation):
    """The set loss of mask queries, at the end and before each block that they are in (deep supervision).

    Matching and points are those of this process and micro-batch, so a batch in parts has nearly the loss of the whole.
    All draws come from torch's generator, which the loop seeds for each step.
    """

    capturable = False  # the host matches queries and masks
    mask_probability: Tensor

    def __init__(self, model: Model):
        check_solver()
        super().__init__(model)
        blocks = self.model.config.query_blocks
        self.register_buffer("mask_probability", torch.ones(blocks), persistent=False)
        self.set_loss: Callable[[Sequence[QueryPrediction], Tensor], LossAndMetrics] = set_loss

    def before_compiling(self) -> None:
        """Leave out the set loss: the host decides, and the number of masks differs in every batch."""
        self.set_loss = torch.compiler.disable(set_loss)

    def at_step(self, step: int, steps: int) -> None:
        probabilities = mask_probabilities(step, steps, len(self.mask_probability))
        self.mask_probability.copy_(torch.tensor(probabilities))

    def forward(self, pixels: Tensor, targets: Tensor) -> LossAndMetrics:
        predictions = self.model.predictions(self.normalise(pixels), self.mask_probability)
        loss, parts = self.set_loss(predictions, targets)
        with torch.no_grad():
            return loss, {"pixel_accuracy": pixel_accuracy(predictions[-1].scores(), targets), **parts}


def mask_probabilities(step: int, steps: int, blocks: int) -> list[float]:
    """Return with which probability queries see their own mask only, in each of the blocks that they are in.

    As EoMT anneals its four blocks: a run has `blocks` + 2 stages; block i falls from 1 to 0 in stage i + 1,
    polynomially. In the last stage, training is what inference is.
    """
    stage = steps / (blocks + 2)
    progress = [min(max(step / stage - (block + 1), 0.0), 1.0) for block in range(blocks)]
    return [(1 - done) ** ANNEALING_POWER for done in progress]


def build_segmentation(model: Model) -> Segmentation:
    """Return the objective of the model's head."""
    queries = isinstance(model, Segmenter) and model.config.head == "queries"
    return MaskSet(model) if queries else PixelLabels(model)
