"""Fit the head on frozen features: they are computed once, and logistic regression finds the best linear layer.

That takes seconds where fine-tuning all weights takes minutes, on a CPU hours: as an end in itself, or as the start of
fine-tuning (linear probing, then fine-tuning: Kumar et al. 2022).

Shapes: n images, D features, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from vitkit.compute.features import FeatureExtractor
from vitkit.config.schema import Fit
from vitkit.data.partition import stratified
from vitkit.data.sources.dataset import DataError, Split
from vitkit.data.stateless_rng import generator
from vitkit.devices import pick_precision, pick_workers
from vitkit.model.build import Model
from vitkit.progress import show_progress
from vitkit.run_folder import RunFolder
from vitkit.train.distributed import Processes
from vitkit.train.logistic_regression import LogisticRegression, fit_logistic_regression
from vitkit.train.objectives.labels import class_weights

PrintLine = Callable[[str, str], None]

L2 = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # strongest first: each solution starts the next search
DEV = 0.2  # share of the images held out for choosing among them
MAX_IMAGES = 50_000  # more would improve a linear layer of these widths little and take minutes
ITERATIONS, GRADIENT = 300, 1e-5  # a head is not more accurate at the last digits of the optimum
SAMPLING = 0x4EAD  # sets these draws apart from others with the same seed


@dataclass(frozen=True, kw_only=True)
class FittedHead:
    """A linear layer for a model's head, and how it was found."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)
    images: int  # it was fitted on
    l2: float
    accuracy: float | None  # on the images held out for choosing l2; None where images have several labels
    loss: float

    def apply_to(self, model: Model) -> None:
        """Copy the layer into the model's head."""
        with torch.no_grad():
            model.head.logits.weight.copy_(self.weight)
            model.head.logits.bias.copy_(self.bias)

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("images", "l2", "accuracy", "loss")}

    def describe(self) -> str:
        held_out = "" if self.accuracy is None else f", {self.accuracy:.1%} top-1 on images held out from it"
        return f"linear, fitted on the features of {self.images:,} images (l2 {self.l2:g}){held_out}"


def start_with_fitted_head(
    model: Model, config: Fit, split: Split, folder: RunFolder, processes: Processes, print_line: PrintLine
) -> None:
    """Fit the model's head on rank zero and give it to every rank; a head that comes with the weights is kept."""
    if model.head.logits.weight.any():
        return
    fitted = processes.broadcast(
        processes.on_rank_zero(lambda: fit_head(feature_extractor(model, config, processes), split, config))
    )
    fitted.apply_to(model)
    if processes.is_rank_zero:
        folder.add_to_record(head=fitted.record())
    print_line("head", fitted.describe())


def feature_extractor(model: Model, config: Fit, processes: Processes) -> FeatureExtractor:
    return FeatureExtractor(
        model=model,
        device=processes.device,
        precision=pick_precision(config.precision, processes.device),
        workers=pick_workers(config.workers, processes.device, processes.world_size),
        max_failed=config.max_failed,
        progress=show_progress,
    )


def fit_head(extract: FeatureExtractor, split: Split, config: Fit) -> FittedHead:
    """Compute the features of the split's images and fit a head with as many classes as the model has."""
    classes, seed = extract.model.config.classes, config.seed
    if len(split) > MAX_IMAGES:
        chosen = generator(seed, SAMPLING).permutation(len(split))[:MAX_IMAGES]
        split = split.select(np.sort(chosen))
    features = extract(split)
    values, labels = features.values, features.labels
    weights = class_weights(labels, classes, config.balance)

    def fit(rows: NDArray[Any] | slice, l2: float, start: LogisticRegression | None = None) -> LogisticRegression:
        return fit_logistic_regression(
            values[rows],
            labels[rows],
            l2,
            class_weights=weights,
            start=start,
            device=extract.device,
            iterations=ITERATIONS,
            gradient=GRADIENT,
        )

    rest, dev = stratified(labels, DEV, seed)
    if not len(rest) or not len(dev):
        raise DataError(
            f"{len(values)} images, no two of a class, are too few to hold some out for fitting a head.",
            try_="more images, or --set start=full",
        )
    trials: list[tuple[float, float, float | None]] = []  # loss, l2, accuracy
    regression: LogisticRegression | None = None
    for l2 in L2:
        regression = fit(rest, l2, regression)
        loss, accuracy = _validate(regression, values[dev], labels[dev])
        trials.append((loss, l2, accuracy))
    loss, l2, accuracy = min(trials, key=lambda trial: trial[0])
    weight, bias = fit(slice(None), l2).linear_layer(classes)
    return FittedHead(
        weight=weight.float().cpu(), bias=bias.float().cpu(), images=len(values), l2=l2, accuracy=accuracy, loss=loss
    )


def _validate(regression: LogisticRegression, values: NDArray[Any], labels: NDArray[Any]) -> tuple[float, float | None]:
    """Return loss and accuracy on images whose classes the regression knows."""
    logits = regression.logits(values).cpu()
    if labels.ndim == 2:
        targets = torch.from_numpy(labels[:, regression.present]).to(logits)
        return float(binary_cross_entropy_with_logits(logits, targets)), None
    targets = torch.from_numpy(np.searchsorted(regression.present, labels))
    return float(cross_entropy(logits, targets)), float((logits.argmax(dim=1) == targets).double().mean())
