"""Run a model for an analysis: in evaluation mode, in batches that fit into memory, and only where it applies."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.model.build import Model, TokenModel
from vitkit.model.segmenter_config import SegmenterConfig
from vitkit.model.vit import VisionTransformer

MAX_ATTENTION_WEIGHTS = 2**26  # held at a time, 256 MiB: one layer for 12 images in L/16 at 384 px
MAX_BATCH = 32  # images at a time


class DoesNotApply(VitkitError):
    """The analysis does not apply to the model: a ResNet has no attention, masked pre-training leaves no classes."""


def require_tokens(model: Model, analysis: str) -> TokenModel:
    """Return the model, or raise DoesNotApply for one without tokens."""
    if isinstance(model, TokenModel):
        return model
    raise DoesNotApply(f"{analysis}: {model.kind} has no tokens, and so no attention between them and no positions.")


def require_vit(model: Model, analysis: str) -> VisionTransformer:
    """Return the model, or raise DoesNotApply for one of another kind."""
    found = require_tokens(model, analysis)
    if isinstance(found, VisionTransformer):
        return found
    raise DoesNotApply(f"{analysis}: it is built for Vision Transformers alone, not for {model.kind}.")


def batch_size(model: TokenModel) -> int:
    """Return the number of images whose attention in one layer fits into memory."""
    config = model.config
    queries = config.queries if isinstance(config, SegmenterConfig) else 0
    return min(max(MAX_ATTENTION_WEIGHTS // (config.heads * (queries + config.tokens) ** 2), 1), MAX_BATCH)


@contextmanager
def eval_mode(model: Model) -> Iterator[None]:
    """Switch off gradients and dropout; afterwards every module is in training or evaluation mode as before."""
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in in_training:
            module.training = True


def as_model_input(images: Tensor, model: Model) -> Tensor:
    """Check the size of the images and return them on the model's device, in its dtype."""
    # an image turned on its side has as many patches: without the check, its map would be silently wrong
    model.check_images(images)
    reference = next(model.parameters())
    return images.to(device=reference.device, dtype=reference.dtype)


def at_least_float32(weights: Tensor) -> Tensor:
    """Return the weights in float32 or wider, as sums over layers and images need it."""
    return weights.to(torch.promote_types(weights.dtype, torch.float32))
