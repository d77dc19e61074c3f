"""Supervised training: softmax or sigmoid cross-entropy with label smoothing and class weights.

Shapes: B images, C channels, K classes, n images of a split. Pixels are 0 … 1, augmented and mixed already.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.config.schema import Fit
from vitkit.data.sparse_labels import SparseLabels, SplitLabels
from vitkit.model.build import Model, check_of_images
from vitkit.model.heads import Head
from vitkit.train.objectives.base import LossAndMetrics, Objective


class Labels(Objective):
    """Cross-entropy with soft targets: softmax over the classes, or a sigmoid for each class where `multilabel`."""

    weights: Tensor | None

    def __init__(self, model: Model, *, multilabel: bool, smoothing: float, weights: Tensor | None):
        check_of_images(model, "the class of an image")
        super().__init__(model, class_token_only=True)
        self.multilabel, self.smoothing = multilabel, smoothing
        self.register_buffer("weights", weights, persistent=False)
        for unused in model.unused_by_logits:  # DDP waits for gradients of whatever could have one
            unused.requires_grad_(False)

    def forward(self, pixels: Tensor, targets: Tensor) -> LossAndMetrics:  # (B, C, height, width), (B, K)
        return self.score(self.model(self.normalise(pixels)), targets)

    def score(self, logits: Tensor, targets: Tensor) -> LossAndMetrics:  # (B, K), (B, K)
        logits = logits.float()  # the loss in fp32 whatever the model computes in
        loss = sigmoid_loss if self.multilabel else softmax_loss
        return loss(logits, targets, self.smoothing, self.weights), self._metrics(logits.detach(), targets)

    def finish(self, trained: Model, config: Fit) -> None:
        if config.priors == "data" and self.weights is not None:
            restore_priors(trained.head, self.weights.cpu())

    def _metrics(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        best = logits.argmax(dim=1)
        if self.multilabel:  # how often the class with the highest logit is one of the image's
            return {"top1_precision": targets.gather(1, best[:, None]).mean()}
        return {"accuracy": (best == targets.argmax(dim=1)).float().mean()}


def softmax_loss(logits: Tensor, targets: Tensor, smoothing: float, weights: Tensor | None) -> Tensor:
    """Return the mean over images of Σ_k w_k t_k (-log p_k), with smoothed targets t.

    With soft targets torch divides by the number of images, not by the sum of their weights as it does with class
    indices, so every micro-batch has the same weight, whatever its classes.
    """
    return F.cross_entropy(logits, targets, weight=weights, label_smoothing=smoothing)


def sigmoid_loss(logits: Tensor, targets: Tensor, smoothing: float, weights: Tensor | None) -> Tensor:
    """Return the binary cross-entropy summed over classes, averaged over images (as big_vision); w_k on positives."""
    targets = (1 - smoothing) * targets + smoothing / 2
    return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights, reduction="sum") / len(logits)


def restore_priors(head: Head, weights: Tensor) -> None:
    """Undo the effect of class weights (K,) on the probabilities: subtract log w from the bias of the logits.

    The weighted loss is least where softmax gives w_k p_k / Σ_j w_j p_j, and the sigmoid w_k p_k / (1 - p_k + w_k p_k),
    with p the true posterior; either way the logits are those of p plus log w.
    """
    with torch.no_grad():
        for layer in head.logits.modules():  # DeiT's two heads, of which the mean counts, both get it
            if isinstance(layer, nn.Linear):
                layer.bias.sub_(weights.log().to(layer.bias))


def class_weights(labels: SplitLabels, classes: int, balance: float) -> Tensor | None:
    """Return the weight (K,) of each class, (mean count / count) ** balance, or None where balance is 0.

    Labels are (n,) class indices, -1 where unlabelled, or SparseLabels. Weights are scaled so that their average
    over the labels is 1 and the learning rate means the same. A class without images gets weight 1; only label
    smoothing gives it a target.
    """
    if balance == 0:
        return None
    counts = (
        labels.counts() if isinstance(labels, SparseLabels) else np.bincount(labels[labels >= 0], minlength=classes)
    )
    present = counts > 0
    weights = np.ones(classes)
    if present.any():
        unscaled = counts[present] ** -float(balance)  # the mean count would cancel below
        weights[present] = unscaled / np.average(unscaled, weights=counts[present])
    return torch.from_numpy(weights).float()
