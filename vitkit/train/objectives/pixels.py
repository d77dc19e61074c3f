"""iGPT's objectives (Chen et al. 2020): predict the colour of the next pixel, or of hidden ones. No labels.

Shapes: B images, C channels, N pixels of an image, M hidden ones, K colours, D width.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.config.schema import Masked
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.model.igpt import ImageGPT
from vitkit.text import counted
from vitkit.train.objectives.base import LossAndMetrics, Objective
from vitkit.train.objectives.labels import Labels
from vitkit.train.objectives.masked_patch import pick


class PixelPrediction(Objective):
    """The base of both objectives: classify pixels by their colour."""

    model: ImageGPT

    def __init__(self, model: Model, *, title: str, causal: bool):
        if not isinstance(model, ImageGPT):
            raise ConfigError(
                f"{title} needs a model that reads pixels one by one, and this is {model.kind}",
                try_="an iGPT: --model iGPT-S/32, or a small one for a CPU, iGPT-mu/16",
            )
        if model.config.causal != causal:
            sees = "earlier pixels only" if model.config.causal else "all pixels, the one to predict too"
            raise ConfigError(
                f"{title} is not for causal = {str(model.config.causal).lower()}, a model in which a pixel sees {sees}",
                try_=f"options.causal={str(causal).lower()}",
            )
        super().__init__(model, class_token_only=False)
        model.head.requires_grad_(False)  # DDP waits for gradients of whatever could have one

    def colours(self, pixels: Tensor) -> Tensor:
        """Return the colour of each pixel of images (B, C, height, width): (B, N)."""
        return self.model.quantise((pixels - self.mean) / self.std)

    def describe(self, pixels: Tensor) -> str:
        """Describe what is predicted, and which loss on images (n, C, height, width) shows that nothing is learned."""
        text = f"one of {self.model.config.colours:,} colours for each predicted pixel"
        if not len(pixels):  # none could be decoded, which the data loader reports
            return text
        frequencies = self.colours(pixels).flatten().bincount().double()
        entropy = torch.special.entr(frequencies / frequencies.sum()).sum().item()
        return (
            f"{text}; a model that knew only how frequent colours are would have a loss of {entropy:.3g}, or "
            f"{entropy / math.log(2):.3g} bits, their entropy in {counted(len(pixels), 'image')}"
        )


class NextPixel(PixelPrediction):
    """Predict each pixel from those before it in raster order; the loss is its negative log-likelihood, in nats."""

    def __init__(self, model: Model):
        super().__init__(model, title="next-pixel prediction", causal=True)

    def forward(self, pixels: Tensor, targets: Tensor | None = None) -> LossAndMetrics:
        """Return the loss for pixels (B, C, height, width); `targets` are ignored."""
        colours = self.colours(pixels)  # (B, N)
        return _loss(self.model.next_colour(self.model.encode(self.model.embed(colours))), colours)


class MaskedPixel(PixelPrediction):
    """Predict masked pixels from all others, as BERT; torch's generator, seeded for each step, draws them."""

    def __init__(self, model: Model, settings: Masked):
        super().__init__(model, title="masked-pixel prediction", causal=False)
        self.rate = settings.rate

    def forward(self, pixels: Tensor, targets: Tensor | None = None) -> LossAndMetrics:
        """Return the loss for pixels (B, C, height, width); `targets` are ignored.

        Every image has the same number of hidden pixels: no shape depends on a draw, so the host never waits for a GPU.
        """
        colours = self.colours(pixels)  # (B, N)
        count = max(round(self.rate * colours.shape[1]), 1)
        chosen = torch.rand(colours.shape, device=colours.device).argsort(dim=1)[:, :count]  # (B, M)
        hidden = torch.zeros_like(colours, dtype=torch.bool).scatter(1, chosen, True)
        encoded = self.model.encode(self.model.embed(colours, hidden))
        return _loss(self.model.next_colour(pick(encoded, chosen)), colours.gather(1, chosen))

    def describe(self, pixels: Tensor) -> str:
        return f"{self.rate:.0%} of the pixels are hidden; {super().describe(pixels)}"


class LabelsAndPixels(Labels):
    """Train on labels and the next pixel: the loss of the labels, plus `generative` times that of the pixels."""

    model: ImageGPT

    def __init__(self, model: Model, *, generative: float, **settings: Any):
        if not isinstance(model, ImageGPT) or not model.config.causal:
            what = "an iGPT that sees all pixels" if isinstance(model, ImageGPT) else model.kind
            raise ConfigError(
                f"generative = {generative:g} is for models that predict the next pixel, and this is {what}",
                try_="generative = 0",
            )
        trained = model.next_colour.weight.requires_grad  # unless it is frozen, it learns as well
        super().__init__(model, **settings)
        model.next_colour.requires_grad_(trained)
        self.generative = generative

    def forward(self, pixels: Tensor, targets: Tensor) -> LossAndMetrics:  # (B, C, height, width), (B, K)
        colours = self.model.quantise((pixels - self.mean) / self.std)
        encoded = self.model.encode(self.model.embed(colours))
        loss, metrics = self.score(self.model.head(self.model.head.represent(encoded.mean(dim=1))), targets)
        pixel_loss, pixel_metrics = _loss(self.model.next_colour(encoded), colours)
        bits = pixel_metrics["bits_per_pixel"]
        return loss + self.generative * pixel_loss, {**metrics, "bits_per_pixel": bits}


def _loss(predicted: Tensor, colours: Tensor) -> LossAndMetrics:
    """Return the mean cross-entropy of predictions (B, n, K), and the same in bits, for colours (B, n)."""
    logits = predicted.flatten(0, 1).float()
    loss = F.cross_entropy(logits, colours.flatten())
    accuracy = (logits.detach().argmax(dim=-1) == colours.flatten()).float().mean()
    return loss, {"bits_per_pixel": loss.detach() / math.log(2), "accuracy": accuracy}
