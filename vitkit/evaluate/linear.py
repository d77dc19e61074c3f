"""A linear probe: logistic regression on frozen features, its regularisation chosen on a dev split."""

from dataclasses import dataclass

import torch

from vitkit.compute.features import Features, concatenate
from vitkit.data.partition import stratified
from vitkit.data.sources.dataset import DataError
from vitkit.train.logistic_regression import LogisticRegression, fit_logistic_regression

GRID = tuple(10.0**power for power in range(2, -7, -1))  # strongest first: each solution starts the next search
DEV = 0.2  # share of the images that is held out for choosing l2, where the data have no validation split


@dataclass(frozen=True, kw_only=True)
class L2Trial:
    l2: float
    accuracy: float  # on the dev images


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
    """Return the images to fit and the dev images, a stratified sample."""
    rest, dev = stratified(fit.labels, DEV)
    return fit.select(rest), fit.select(dev)
