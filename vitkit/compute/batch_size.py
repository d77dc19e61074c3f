"""The batch size of inference over many images: large enough to keep the device busy, small enough for its memory."""

import torch

from vitkit.devices import free_memory
from vitkit.model.build import Model
from vitkit.model.vit import VisionTransformer

SMALL = 64  # enough for a CPU, whose caches larger batches leave
LARGE = 256  # B/16 fills a GPU with so many; larger ones gain nothing and delay the first rows
ACTIVATIONS = 8  # of the widest layer, in float32, which the forward pass may hold at a time
MEMORY = 0.25  # share of the free memory that they may take


def inference_batch(model: Model, device: torch.device) -> int:
    """Return the number of images to compute at a time."""
    if device.type != "cuda" or not isinstance(model, VisionTransformer):
        return SMALL
    config = model.config
    tokens = config.image[0] * config.image[1] // config.patch**2
    per_image = ACTIVATIONS * tokens * max(config.mlp, 4 * config.width) * torch.float32.itemsize
    return LARGE if LARGE * per_image <= MEMORY * free_memory(device) else SMALL
