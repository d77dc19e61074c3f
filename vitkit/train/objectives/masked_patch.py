"""Masked patch prediction (appendix B.1.2): corrupt half of the patch embeddings, predict their colours. No labels.

The paper's three targets for a corrupted patch:

colour   its mean colour in 3 bits per channel: one prediction of 512 colours (the paper's choice)
4x4      the patch downsized to 4 x 4 pixels of 3 bits per channel: 16 predictions of 512 colours
pixels   all of its RGB values, with a squared loss (L2)

Shapes: B images, C channels, P side of a patch in image pixels, h x w grid, N = h·w patches, M corrupted ones,
D width, S = 1 or 16 predictions for a patch, K = 8^C colours.
"""

from functools import reduce
from math import isqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.config.schema import Masked
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.model.heads import zero_linear
from vitkit.model.patches import cut
from vitkit.model.vit import VisionTransformer
from vitkit.text import counted
from vitkit.train.objectives.base import LossAndMetrics, Objective

LEVELS = 8  # 3 bits of each channel
MASKED, SWAPPED = 0.8, 0.1  # of the corrupted patches; the rest stay unchanged
MOST_CHANNELS = 4  # 8^4 = 4,096 colours; more would be a larger layer than the model
PREDICTIONS = {"colour": 1, "4x4": 16}  # of a colour, for each patch


class MaskedPatch(Objective):
    """Self-supervised masked patch prediction; it draws from torch's generator, which the loop seeds for each step."""

    model: VisionTransformer

    def __init__(self, model: Model, settings: Masked):
        if not isinstance(model, VisionTransformer):
            raise ConfigError(
                f"masked patch prediction needs a model with patches for whole images, and this is {model.kind}",
                try_="a Vision Transformer such as B/16, or a hybrid such as R50+B/16",
            )
        channels, patch, width = model.config.channels, model.config.stride, model.config.width
        predictions = PREDICTIONS.get(settings.target, 0)  # S, 0 for pixels
        if predictions and channels > MOST_CHANNELS:
            raise ConfigError(
                f"a colour of {channels} channels would be one of {LEVELS**channels:,} classes",
                try_="masked.target = pixels, which has no classes",
            )
        if patch < isqrt(predictions):
            raise ConfigError(
                f"masked.target = {settings.target}: a patch of {patch} x {patch} pixels has fewer pixels than that",
                try_="masked.target = colour, or a model with larger patches",
            )
        super().__init__(model, class_token_only=False)
        self.settings, self.predictions = settings, predictions
        self.mask_token = nn.Parameter(nn.init.normal_(torch.empty(1, width), std=0.02))
        self.guess = zero_linear(width, predictions * LEVELS**channels or channels * patch**2)
        for unused in (model.pool, model.projection, model.head):  # DDP waits for gradients of whatever could have one
            if unused is not None:
                unused.requires_grad_(False)

    def forward(self, pixels: Tensor, targets: Tensor | None = None) -> LossAndMetrics:
        """Return the loss for pixels (B, C, h·P, w·P); `targets` are ignored."""
        config = self.model.config
        corrupted, chosen = corrupt(self.model.embed(self.normalise(pixels)), self.mask_token, self.settings.rate)
        tokens = self.model.encode(corrupted)[:, config.special_tokens :]  # (B, N, D)
        guesses = self.guess(pick(tokens, chosen)).float()  # (B, M, S·K), or (B, M, C·P·P)
        if not self.predictions:
            return F.mse_loss(guesses, pick(cut(pixels, config.stride), chosen)), {}
        colours = pick(self.colours(pixels), chosen).flatten()  # (B·M·S,)
        guesses = guesses.view(len(colours), -1)  # (B·M·S, K)
        right = (guesses.detach().argmax(dim=-1) == colours).float().mean()
        return F.cross_entropy(guesses, colours), {"accuracy": right}

    def colours(self, pixels: Tensor) -> Tensor:
        """Return the colours (B, N, S) of all patches of pixels (B, C, h·P, w·P)."""
        return colour_classes(mean_colours(pixels, self.model.config.grid, isqrt(self.predictions)))

    def uninformed_loss(self, pixels: Tensor) -> float:
        """Return the loss of a head that knows how frequent colours are, and nothing about the image.

        It is the entropy of the colours; of pixels, their variance.
        """
        if not self.predictions:
            return pixels.var(dim=(0, 2, 3), correction=0).mean().item()
        frequencies = self.colours(pixels).flatten().bincount().double()
        return torch.special.entr(frequencies / frequencies.sum()).sum().item()

    def describe(self, pixels: Tensor) -> str:
        """Describe what is predicted, and which loss on images (n, C, h·P, w·P) shows that nothing is learned yet."""
        colours = f"{LEVELS**self.model.config.channels:,} colours"
        predicted = f"{counted(self.predictions, 'prediction')} of {colours}" if self.predictions else "all pixels"
        text = f"{self.settings.rate:.0%} of the patches are corrupted; {self.settings.target}: {predicted} for each"
        if not len(pixels):  # none could be decoded, which the data loader reports
            return text
        known = "entropy" if self.predictions else "variance"
        return (
            f"{text}; a head that knew only how frequent colours are would have a loss of "
            f"{self.uninformed_loss(pixels):.3g}, their {known} in {counted(len(pixels), 'image')}"
        )


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


def mean_colours(pixels: Tensor, grid: tuple[int, int], cells: int = 1) -> Tensor:
    """Return the mean colour of each cell of each patch: (B, C, h·P, w·P) → (B, N, S, C) with S = cells², rows first.

    Where P is no multiple of `cells`, cells overlap by the pixels that they would have to divide.
    """
    b, c, _, _ = pixels.shape
    means = F.adaptive_avg_pool2d(pixels, (grid[0] * cells, grid[1] * cells))  # (B, C, h·cells, w·cells)
    return cut(means, cells).view(b, -1, c, cells**2).transpose(2, 3)


def colour_classes(means: Tensor) -> Tensor:
    """Return the class of each mean colour (…, C) in 0 … 1: three bits a channel, 64 r + 8 g + b."""
    levels = (means * LEVELS).long().clamp(0, LEVELS - 1)
    return reduce(lambda code, level: code * LEVELS + level, levels.unbind(-1))
