"""What training minimises: a model and a batch → a loss. Here the basis and learning from labels.

Losses and measures are averages over the pictures given, so that equal parts of a batch average to the whole.

Shapes: B pictures, C channels, K classes, n pictures of a split. Pixels are 0 … 1, augmented and mixed already.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitkit.data.transforms import per_channel
from vitkit.model.build import Model

Measured = tuple[Tensor, dict[str, Tensor]]  # the loss; other scalars to look at, detached


class Objective(nn.Module):
    mean: Tensor
    std: Tensor

    def __init__(self, model: Model):
        super().__init__()
        self.model = model
        how = model.metadata.preprocessing
        for name, values in (("mean", how.mean), ("std", how.std)):
            self.register_buffer(name, per_channel(values, model.config.channels)[None], persistent=False)

    def normalise(self, pixels: Tensor) -> Tensor:  # (B, C, height, width)
        """In the model's numbers, which may be narrower than those that colours are computed in."""
        return ((pixels - self.mean) / self.std).to(self.model.dtype)

    def forward(self, pixels: Tensor, targets: Tensor) -> Measured:
        raise NotImplementedError


class Labels(Objective):
    """Cross-entropy with the shares that classes have in a picture: softmax, or a sigmoid for each class."""

    weights: Tensor | None

    def __init__(self, model: Model, *, multilabel: bool, smoothing: float, weights: Tensor | None):
        super().__init__(model)
        self.multilabel, self.smoothing = multilabel, smoothing
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, pixels: Tensor, targets: Tensor) -> Measured:  # (B, C, height, width), (B, K)
        logits = self.model(self.normalise(pixels)).float()  # the loss in fp32 whatever the model computes in
        loss = sigmoid_loss if self.multilabel else softmax_loss
        return loss(logits, targets, self.smoothing, self.weights), self._measure(logits.detach(), targets)

    def _measure(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        best = logits.argmax(dim=1)
        if self.multilabel:  # how often the class answered first is one of the picture's
            return {"top1_precision": targets.gather(1, best[:, None]).mean()}
        return {"accuracy": (best == targets.argmax(dim=1)).float().mean()}


def softmax_loss(logits: Tensor, targets: Tensor, smoothing: float, weights: Tensor | None) -> Tensor:
    """The mean over pictures of Σ_k w_k t_k (-log p_k), a share of each t going to all classes alike.

    With targets as shares torch divides by the pictures, not by their weights as it does with class indices: a part
    of a batch with rare classes counts no less than another.
    """
    return F.cross_entropy(logits, targets, weight=weights, label_smoothing=smoothing)


def sigmoid_loss(logits: Tensor, targets: Tensor, smoothing: float, weights: Tensor | None) -> Tensor:
    """Binary cross-entropies summed over classes, averaged over pictures (as big_vision); w_k on positives alone."""
    targets = (1 - smoothing) * targets + smoothing / 2
    return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights, reduction="sum") / len(logits)


def class_weights(labels: NDArray[Any], classes: int, balance: float) -> Tensor | None:
    """(n,) classes, -1 where unlabelled, or (n, K) of 0 and 1 → (K,): (mean count / count) ** balance, or None for 0.

    Scaled so that the labels' average weight is 1 and the learning rate means the same. A class without a picture
    weighs 1: nothing pulls towards it but smoothing.
    """
    if balance == 0:
        return None
    counts = labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels[labels >= 0], minlength=classes)
    present = counts > 0
    weights = np.ones(classes)
    if present.any():
        unscaled = counts[present] ** -float(balance)  # the mean count would cancel below
        weights[present] = unscaled / np.average(unscaled, weights=counts[present])
    return torch.from_numpy(weights).float()
