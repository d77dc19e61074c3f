"""A linear probe: multinomial logistic regression on frozen features, its regularisation chosen on a dev split.

It minimises mean cross-entropy + l2 / 2 · |W|² over standardised features in float64 by L-BFGS; the bias is not
regularised. In scikit-learn's terms C = 1 / (n · l2).

Shapes: n images to fit, m test images, D features, K classes that have images.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitkit.data.partition import stratified
from vitkit.data.sources.dataset import DataError
from vitkit.evaluate.features import Features, concatenate
from vitkit.evaluate.metrics import Ints

GRID = tuple(10.0**power for power in range(2, -7, -1))  # strongest first: each solution starts the next search
DEV = 0.2  # share of the images that is held out for choosing l2, where the data have no validation split
DEVIATION = 1e-5  # added to each: a constant feature is not divided by zero
ITERATIONS = 1000
GRADIENT = 1e-7  # the search ends when no entry of the gradient is larger


@dataclass(frozen=True, kw_only=True)
class L2Trial:
    l2: float
    accuracy: float  # on the dev images


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


def fit_linear_probe(
    fit: Features, dev: Features, device: torch.device | str = "cpu"
) -> tuple[LogisticRegression, float, tuple[L2Trial, ...]]:
    """Fit all images with the l2 that is best on the dev images, of equals the strongest; also return the trials."""
    if not len(fit) or not len(dev):
        raise DataError(
            f"{len(fit) + len(dev)} images, no two of a class, are too few to hold some out for choosing l2.",
            try_="--method knn, which chooses nothing, or more images",
        )
    trials = []
    classifier: LogisticRegression | None = None
    for l2 in GRID:
        classifier = fit_logistic_regression(fit.values, fit.labels, l2, start=classifier, device=device)
        accuracy = float((classifier.classify(dev.values) == dev.labels).mean())
        trials.append(L2Trial(l2=l2, accuracy=accuracy))
    best = max(trials, key=lambda trial: trial.accuracy).l2
    combined = concatenate(fit, dev)
    return fit_logistic_regression(combined.values, combined.labels, best, device=device), best, tuple(trials)


def hold_out_dev(fit: Features) -> tuple[Features, Features]:
    """Return the images to fit and the dev images, a stratified sample; groups stay on one side."""
    rest, dev = stratified(fit.labels, DEV, groups=fit.groups)
    return fit.select(rest), fit.select(dev)


def fit_logistic_regression(
    values: NDArray[Any],
    labels: Ints,
    l2: float,
    *,
    start: LogisticRegression | None = None,
    device: torch.device | str = "cpu",
) -> LogisticRegression:
    """Fit values (n, D) and labels (n,); `start` is a solution for the same images and another l2."""
    present, indices = np.unique(labels, return_inverse=True)
    device = "cpu" if torch.device(device).type == "mps" else device  # Apple's GPUs have no float64
    features = torch.from_numpy(values).to(device, torch.float64)
    mean, deviation = features.mean(dim=0), features.std(dim=0, correction=0) + DEVIATION
    features, targets = (features - mean) / deviation, torch.from_numpy(indices).to(device)
    weights = features.new_zeros(features.shape[1], len(present)) if start is None else start.weights.clone()
    bias = features.new_zeros(len(present)) if start is None else start.bias.clone()
    optimizer = torch.optim.LBFGS(
        [weights.requires_grad_(), bias.requires_grad_()],
        max_iter=ITERATIONS,
        max_eval=2 * ITERATIONS,
        history_size=20,
        tolerance_grad=GRADIENT,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(features @ weights + bias, targets) + l2 / 2 * weights.square().sum()
        loss.backward()
        return loss

    optimizer.step(objective)
    return LogisticRegression(mean, deviation, weights.detach(), bias.detach(), present)
