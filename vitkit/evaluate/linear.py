"""A linear probe: multinomial logistic regression on frozen features, its regularisation chosen on a dev split.

Minimises mean cross-entropy + l2 / 2 · |W|² over standardised features, the bias free; in float64, by L-BFGS. In
scikit-learn's terms C = 1 / (n · l2).

Shapes: n pictures to fit, m to answer, D features, K classes that have pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitkit.data.partition import stratified
from vitkit.data.sources.base import DataError
from vitkit.evaluate.features import Features, join
from vitkit.evaluate.metrics import Ints

GRID = tuple(10.0**power for power in range(2, -7, -1))  # strong first: each solution is where the next one starts
DEV = 0.2  # share of the pictures that is set aside for choosing, where the data have none for it
DEVIATION = 1e-5  # added to each, so that a feature that never changes is not divided by nothing
ITERATIONS = 1000
GRADIENT = 1e-7  # its largest entry, at which a minimum is one


@dataclass(frozen=True, kw_only=True)
class Tried:
    l2: float
    accuracy: float  # on the dev pictures


@dataclass(frozen=True)
class Logistic:
    mean: Tensor  # (D,)
    deviation: Tensor  # (D,)
    weights: Tensor  # (D, K)
    bias: Tensor  # (K,)
    present: Ints  # (K,) which classes these are: one without pictures would have a bias of minus infinity

    def logits(self, features: NDArray[Any]) -> Tensor:  # (m, D)
        wide = torch.from_numpy(features).to(self.mean)
        return (wide - self.mean) / self.deviation @ self.weights + self.bias  # (m, K)

    def classify(self, features: NDArray[Any]) -> Ints:
        return self.present[self.logits(features).argmax(dim=1).cpu().numpy()]  # (m,)


def learn(
    fit: Features, dev: Features, device: torch.device | str = "cpu"
) -> tuple[Logistic, float, tuple[Tried, ...]]:
    """Fitted on all pictures with the l2 that did best on the dev ones; of equals, the strongest."""
    if not len(fit) or not len(dev):
        raise DataError(
            f"{len(fit) + len(dev)} pictures, no two of a class, are too few to set some aside for choosing.",
            try_="--method knn, which chooses nothing, or more pictures",
        )
    tried = []
    classifier: Logistic | None = None
    for l2 in GRID:
        classifier = regress(fit.values, fit.labels, l2, start=classifier, device=device)
        accuracy = float((classifier.classify(dev.values) == dev.labels).mean())
        tried.append(Tried(l2=l2, accuracy=accuracy))
    best = max(tried, key=lambda one: one.accuracy).l2
    both = join(fit, dev)
    return regress(both.values, both.labels, best, device=device), best, tuple(tried)


def set_aside(fit: Features) -> tuple[Features, Features]:
    """The rest and a dev part, each class in proportion."""
    rest, aside = stratified(fit.labels, DEV)
    return fit.select(rest), fit.select(aside)


def regress(
    values: NDArray[Any], labels: Ints, l2: float, *, start: Logistic | None = None, device: torch.device | str = "cpu"
) -> Logistic:
    """values (n, D), labels (n,). `start` is a solution for the same pictures and another l2."""
    present, places = np.unique(labels, return_inverse=True)
    device = "cpu" if torch.device(device).type == "mps" else device  # Apple's GPUs have no float64
    features = torch.from_numpy(values).to(device, torch.float64)
    mean, deviation = features.mean(dim=0), features.std(dim=0, correction=0) + DEVIATION
    features, targets = (features - mean) / deviation, torch.from_numpy(places).to(device)
    weights = features.new_zeros(features.shape[1], len(present)) if start is None else start.weights.clone()
    bias = features.new_zeros(len(present)) if start is None else start.bias.clone()
    search = torch.optim.LBFGS(
        [weights.requires_grad_(), bias.requires_grad_()],
        max_iter=ITERATIONS,
        max_eval=2 * ITERATIONS,
        history_size=20,
        tolerance_grad=GRADIENT,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        search.zero_grad()
        loss = cross_entropy(features @ weights + bias, targets) + l2 / 2 * weights.square().sum()
        loss.backward()
        return loss

    search.step(objective)
    return Logistic(mean, deviation, weights.detach(), bias.detach(), present)
