"""Logistic regression on features: softmax over the classes, or a sigmoid for each, regularised, fitted by L-BFGS.

It minimises mean cross-entropy + l2 / 2 · |W|² over standardised features in float64; the bias is not regularised. In
scikit-learn's terms C = 1 / (n · l2).

Shapes: n images to fit, m other images, D features, C classes, K of them that have images.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from vitkit.data.sparse_labels import SparseLabels, SplitLabels
from vitkit.torch_private import without_compiler

Ints = NDArray[np.int64]

DEVIATION = 1e-5  # added to each: a constant feature is not divided by zero
ITERATIONS = 1000
GRADIENT = 1e-7  # the search ends when no entry of the gradient is larger


@dataclass(frozen=True)
class LogisticRegression:
    mean: Tensor  # (D,)
    deviation: Tensor  # (D,)
    weights: Tensor  # (D, K)
    bias: Tensor  # (K,)
    present: Ints  # (K,) classes that have images; the bias of others would be minus infinity

    def logits(self, features: NDArray[Any]) -> Tensor:  # (m, D)
        double = torch.from_numpy(features).to(self.mean)
        return (double - self.mean) / self.deviation @ self.weights + self.bias  # (m, K)

    def classify(self, features: NDArray[Any]) -> Ints:
        return self.present[self.logits(features).argmax(dim=1).cpu().numpy()]  # (m,)

    def linear_layer(self, classes: int) -> tuple[Tensor, Tensor]:
        """Return weight (C, D) and bias (C,) of a linear layer over features that are not standardised.

        A class without images gets zero weights and the bias of a class that is e times as rare as the rarest: it stays
        possible for fine-tuning, and is never the answer.
        """
        scaled = self.weights / self.deviation[:, None]
        weight = scaled.new_zeros(classes, len(scaled))
        bias = scaled.new_full((classes,), float(self.bias.min()) - 1)
        weight[self.present] = scaled.T
        bias[self.present] = self.bias - self.mean @ scaled
        return weight, bias


def fit_logistic_regression(
    values: NDArray[Any],
    labels: SplitLabels,
    l2: float,
    *,
    class_weights: Tensor | None = None,
    start: LogisticRegression | None = None,
    device: torch.device | str = "cpu",
    iterations: int = ITERATIONS,
    gradient: float = GRADIENT,
) -> LogisticRegression:
    """Fit values (n, D) to labels: (n,) class indices, or SparseLabels where an image has several.

    `class_weights` (C,) are those of the training objective, on positives where an image has several labels. `start` is
    a solution for the same images and another l2.
    """
    device = "cpu" if torch.device(device).type == "mps" else device  # Apple's GPUs have no float64
    several = isinstance(labels, SparseLabels)
    present = np.flatnonzero(labels.counts()) if isinstance(labels, SparseLabels) else np.unique(labels)
    features = torch.from_numpy(values).to(device, torch.float64)
    mean, deviation = features.mean(dim=0), features.std(dim=0, correction=0) + DEVIATION
    features = (features - mean) / deviation
    targets = torch.from_numpy(
        positive_cells(labels, present) if isinstance(labels, SparseLabels) else np.searchsorted(present, labels)
    ).to(device)
    per_class = None if class_weights is None else class_weights[present].to(features)
    weights = features.new_zeros(features.shape[1], len(present)) if start is None else start.weights.clone()
    bias = features.new_zeros(len(present)) if start is None else start.bias.clone()
    optimizer = without_compiler(torch.optim.LBFGS)(
        [weights.requires_grad_(), bias.requires_grad_()],
        max_iter=iterations,
        max_eval=2 * iterations,
        history_size=20,
        tolerance_grad=gradient,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def loss(logits: Tensor) -> Tensor:
        if several:
            return sum_of_sigmoid_losses(logits, targets, per_class) / len(logits)
        if per_class is None:
            return cross_entropy(logits, targets)
        return (cross_entropy(logits, targets, reduction="none") * per_class[targets]).mean()

    def objective() -> Tensor:
        optimizer.zero_grad()
        regularised = loss(features @ weights + bias) + l2 / 2 * weights.square().sum()
        regularised.backward()
        return regularised

    optimizer.step(objective)
    return LogisticRegression(mean, deviation, weights.detach(), bias.detach(), present)


def positive_cells(labels: SparseLabels, classes: Ints) -> Ints:
    """Return the labels among some classes (K,) as indices (p, 2) of their cells in a table (n, K)."""
    target = np.full(labels.classes, -1)
    target[classes] = np.arange(len(classes))
    chosen = labels.renumber(target, len(classes))
    return np.column_stack([chosen.rows(), chosen.numbers])


def sum_of_sigmoid_losses(logits: Tensor, positive: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the binary cross-entropy over all cells of (n, K); `positive` (p, 2) are those of 1, weighted by (K,).

    No table of targets is made: every cell counts as a 0 first, and those of 1 are corrected.
    """
    rows, columns = positive.T
    found = logits[rows, columns]
    as_one = -logsigmoid(found) if weights is None else -logsigmoid(found) * weights[columns]
    return -logsigmoid(-logits).sum() + (as_one + logsigmoid(-found)).sum()
