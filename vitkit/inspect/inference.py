"""What can be looked at in which model, and how the rest is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.model.build import Model
from vitkit.model.vit import VisionTransformer

NUMBERS = 2**26  # attention weights held at a time, 256 MiB: one layer of 12 pictures in L/16 at 384 px
MOST = 32  # pictures at a time


class DoesNotApply(VitkitError):
    """An analysis that a model has nothing for: no attention in a ResNet, no classes after masked pre-training."""


def transformer(model: Model, what: str) -> VisionTransformer:
    if isinstance(model, VisionTransformer):
        return model
    raise DoesNotApply(f"{what}: a ResNet has no tokens, and so no attention between them and no positions.")


def together(model: VisionTransformer) -> int:
    """Pictures whose attention in one layer fits into memory at once."""
    return min(max(NUMBERS // (model.config.heads * model.config.tokens**2), 1), MOST)


@contextmanager
def looking(model: Model) -> Iterator[None]:
    """No gradients and no dropout; a model that is being trained goes on afterwards, each part as it was."""
    learning = [part for part in model.modules() if part.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part in learning:
            part.training = True


def placed(images: Tensor, model: Model) -> Tensor:
    """On the model's device, in its numbers; of the size that it is for, or an error."""
    # a picture turned on its side has as many patches, and would be laid out wrong without a word
    model.check_images(images)
    reference = next(model.parameters())
    return images.to(device=reference.device, dtype=reference.dtype)


def widened(weights: Tensor) -> Tensor:
    """Sums over layers and pictures need float32 at least."""
    return weights.to(torch.promote_types(weights.dtype, torch.float32))
