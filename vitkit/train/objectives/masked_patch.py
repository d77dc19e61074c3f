"""Masked patch prediction (appendix B.1.2): corrupt half of the patch embeddings, predict their colours. No labels.

Shapes: B images, C channels, P side of a patch in image pixels, h x w grid, N = h·w patches, M corrupted ones,
D width, K = 8^C colours.
"""

from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.config.schema import Masked
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.model.heads import zero_linear
from vitkit.model.patches import cut
from vitkit.model.vit import VisionTransformer
from vitkit.train.objectives.base import LossAndMetrics, Objective

LEVELS = 8  # 3 bits of each channel
MASKED, SWAPPED = 0.8, 0.1  # of the corrupted patches; the rest stay unchanged
MOST_CHANNELS = 4  # 8^4 = 4,096 colours; more would be a larger layer than the model


class MaskedPatch(Objective):
    """Self-supervised masked patch prediction; it draws from torch's generator, which the loop seeds for each step."""

    model: VisionTransformer

    def __init__(self, model: Model, settings: Masked):
        if not isinstance(model, VisionTransformer):
            raise ConfigError(
                "masked patch prediction needs a model with patches, and a ResNet has none",
                try_="a Vision Transformer such as B/16, or a hybrid such as R50+B/16",
            )
        channels, patch, width = model.config.channels, model.config.stride, model.config.width
        if settings.target == "colour" and channels > MOST_CHANNELS:
            raise ConfigError(
                f"the mean colour of {channels} channels would be one of {LEVELS**channels:,} classes",
                try_="masked.target = pixels, which has no classes",
            )
        super().__init__(model, class_token_only=False)
        self.settings = settings
        self.mask_token = nn.Parameter(nn.init.normal_(torch.empty(1, width), std=0.02))
        self.guess = zero_linear(width, LEVELS**channels if settings.target == "colour" else channels * patch**2)
        for unused in (model.pool, model.head):  # DDP waits for the gradient of whatever could have one
            unused.requires_grad_(False)

    def forward(self, pixels: Tensor, targets: Tensor | None = None) -> LossAndMetrics:
        """Return the loss for pixels (B, C, h·P, w·P); `targets` are ignored."""
        config = self.model.config
        corrupted, chosen = corrupt(self.model.embed(self.normalise(pixels)), self.mask_token, self.settings.rate)
        tokens = self.model.encode(corrupted)[:, int(config.class_token) :]  # (B, N, D)
        guesses = self.guess(pick(tokens, chosen)).float()  # (B, M, K)
        if self.settings.target == "pixels":
            return F.mse_loss(guesses, pick(cut(pixels, config.stride), chosen)), {}
        colours = colour_classes(mean_colours(pixels, config.grid)).gather(1, chosen)  # (B, M)
        right = (guesses.detach().argmax(dim=-1) == colours).float().mean()
        return F.cross_entropy(guesses.flatten(0, 1), colours.flatten()), {"accuracy": right}


def corrupt(patches: Tensor, mask_token: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Corrupt a share `rate` of each image's patches (B, N, D); return them and the indices (B, M) of the corrupted.

    Every image has the same number of corrupted patches: no shape depends on a draw, so the host never waits for a GPU.
    """
    b, n, _ = patches.shape
    device = patches.device
    chosen = torch.rand(b, n, device=device).argsort(dim=1)[:, : max(round(rate * n), 1)]  # (B, M)
    fate = torch.rand(chosen.shape, device=device)
    # an offset of 1 to N - 1 never gives the patch itself, except where it is the only one
    another = (chosen + torch.randint(1, max(n, 2), chosen.shape, device=device)) % n
    swapped = (fate >= MASKED) & (fate < MASKED + SWAPPED)
    source = torch.arange(n, device=device).repeat(b, 1).scatter(1, chosen, torch.where(swapped, another, chosen))
    masked = torch.zeros(b, n, dtype=torch.bool, device=device).scatter(1, chosen, fate < MASKED)
    return torch.where(masked[..., None], mask_token.to(patches.dtype), pick(patches, source)), chosen


def pick(vectors: Tensor, indices: Tensor) -> Tensor:
    """Gather the vectors (B, N, D) at indices (B, M): (B, M, D)."""
    return vectors.gather(1, indices[..., None].expand(-1, -1, vectors.shape[-1]))


def mean_colours(pixels: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return the mean colour of each patch: (B, C, h·P, w·P) → (B, N, C)."""
    return F.adaptive_avg_pool2d(pixels, grid).flatten(2).transpose(1, 2)


def colour_classes(means: Tensor) -> Tensor:
    """Return the class of each mean colour (B, N, C) in 0 … 1: three bits a channel, 64 r + 8 g + b: (B, N)."""
    levels = (means * LEVELS).long().clamp(0, LEVELS - 1)
    return reduce(lambda code, level: code * LEVELS + level, levels.unbind(-1))
