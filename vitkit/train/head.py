"""Fit the head on frozen features: they are computed once, and logistic regression finds the best linear layer.

That takes seconds where fine-tuning all weights takes minutes on two CPU cores. As the start of fine-tuning (linear
probing, then fine-tuning: Kumar et al. 2022) it was measured worse than the paper's zero head: docs/transfer.md.

Shapes: n images, D features, K classes.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from vitkit import devices
from vitkit.compute.features import FeatureExtractor
from vitkit.config import toml
from vitkit.config.schema import Fit
from vitkit.cost import cost
from vitkit.data.partition import Partition, stratified
from vitkit.data.sources.dataset import Data, Split
from vitkit.data.sparse_labels import SparseLabels, SplitLabels
from vitkit.errors import ConfigError, Interrupted
from vitkit.model.build import Model
from vitkit.model.config import ViTConfig
from vitkit.progress import PrintLine, show_progress
from vitkit.run_folder import RunFolder
from vitkit.text import counted, duration
from vitkit.train.distributed import Processes
from vitkit.train.initial_model import initial_model
from vitkit.train.logistic_regression import (
    LogisticRegression,
    fit_logistic_regression,
    positive_cells,
    sum_of_sigmoid_losses,
)
from vitkit.train.objectives.labels import class_weights, restore_priors
from vitkit.train.signals import exit_code, stop_cleanly_on_sigterm
from vitkit.weights.save import save

DEFAULT_L2 = 1e-2  # where no two images of a class allow a choice
L2 = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # strongest first: each solution starts the next search
DEV = 0.2  # share of the images held out for choosing among them
MAX_IMAGES = 50_000  # more would improve a linear layer of these widths little and take minutes
ITERATIONS, GRADIENT = 300, 1e-5  # a head is not more accurate at the last digits of the optimum


@dataclass(frozen=True, kw_only=True)
class FittedHead:
    """A linear layer for a model's head, and how it was found."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)
    images: int  # it was fitted on
    l2: float
    accuracy: float | None  # on the images held out for choosing l2; None where images have several labels
    loss: float | None
    class_weights: Tensor | None  # (K,) of the loss
    failures: Mapping[str, str]  # images that could not be decoded, with the reasons

    def apply_to(self, model: Model) -> None:
        """Copy the layer into the model's head."""
        if isinstance(model.config, ViTConfig) and (model.config.distillation == "heads" or model.config.normalise):
            metadata = model.metadata
            model.replace_head(model.config.classes)  # one layer that reads the representation as it is
            model.metadata = metadata
        logits = model.get_submodule("head.logits")
        assert isinstance(logits, nn.Linear)
        with torch.no_grad():
            logits.weight.copy_(self.weight)
            logits.bias.copy_(self.bias)

    def describe(self) -> str:
        chosen = "" if self.accuracy is None else f", {self.accuracy:.1%} top-1 on the {DEV:.0%} of them that chose it"
        return f"linear, fitted on the features of {counted(self.images, 'image')} (l2 {self.l2:g}{chosen})"


def decide_start(config: Fit, device: torch.device) -> Fit:
    """Return the settings with `start` decided: on a CPU a pre-trained model gets a new head, elsewhere all is trained.

    A head on the features of Ti/16 takes seconds on two cores where fine-tuning takes ten minutes and more.
    """
    can_fit = config.weights != "none" and config.objective == "labels"
    if config.start == "head" and not can_fit:
        missing = "labels of images" if config.objective != "labels" else "pre-trained weights, and weights = none"
        fix = "--set freeze=-1, which trains the head of masks alone" if config.segments else "start = full"
        raise ConfigError(f"start = head fits a head on frozen features; it needs {missing}.", try_=fix)
    if config.start != "auto":
        return config
    return replace(config, start="head" if can_fit and device.type == "cpu" else "full")


def train_head(
    config: Fit, data: Data, splits: Partition, folder: RunFolder, processes: Processes, print_line: PrintLine
) -> None:
    """Fit the head on frozen features and write the model; one process does it, since it takes seconds."""

    def train() -> None:
        model, description = initial_model(config, data.classes, multilabel=data.multilabel)
        print_line("model", f"{description}; all weights but the head's are frozen")
        device, threads = processes.device, devices.pick_threads(processes.device, cost(model.config).macs)
        print_line("device", devices.describe_device(device, threads))
        began = time.monotonic()
        extract = FeatureExtractor(
            model=model,
            device=device,
            precision=devices.pick_precision(config.precision, device),
            workers=devices.pick_workers(config.workers, device, 1),
            max_failed=config.max_failed,
            progress=show_progress,
        )
        print_line("input", extract.transform.description)
        with devices.use_threads(threads), _kept_features():
            fitted = fit_head(extract, splits.train, config)
            fitted.apply_to(model)
            if config.priors == "data" and fitted.class_weights is not None:
                restore_priors(model.head, fitted.class_weights)
            fine_tuning = _seconds_of_fine_tuning(model, device, config, len(splits.train))
        print_line("head", f"{fitted.describe()}, in {duration(time.monotonic() - began)}")
        for image, reason in fitted.failures.items():
            folder.log("left-out", 0, image=image, reason=reason)
        found = {name: getattr(fitted, name) for name in ("images", "l2", "accuracy", "loss")}
        folder.log("head", 0, **found)
        folder.write_config(config)
        folder.add_to_record(
            settings=toml.to_tables(config),
            objective=config.objective,
            precision=extract.precision,
            device=devices.describe_device(device, threads),
            processes=1,
            split=splits.held_out,
            subset=splits.subset,
            parameters=cost(model.config).parameters,
            macs=cost(model.config).macs,
            head=found,
            fine_tuning_seconds=round(fine_tuning, 1),
        )
        save(model.cpu().eval(), folder.path)

    processes.on_rank_zero(train)


@contextlib.contextmanager
def _kept_features() -> Iterator[None]:
    """Say how to continue after Ctrl-C or SIGTERM: features that were computed are cached."""
    try:
        with stop_cleanly_on_sigterm():
            yield
    except KeyboardInterrupt as stopped:
        raise Interrupted(
            "stopped; the features computed so far are cached, and the same command continues from there",
            exit_code(stopped),
        ) from None


def _seconds_of_fine_tuning(model: Model, device: torch.device, config: Fit, images: int) -> float:
    """Estimate how long the recipe's fine-tuning takes here: a backward pass costs twice a forward pass."""
    size, trained = 8, config.steps * config.batch if config.steps else (config.epochs or 0) * images
    pixels = torch.zeros(size, model.config.channels, *model.config.image, device=device)
    model.to(device).eval()
    with torch.no_grad():
        model(pixels)  # the first pass allocates memory
        began = time.monotonic()
        model(pixels)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return 3 * (time.monotonic() - began) / size * trained


def fit_head(extract: FeatureExtractor, split: Split, config: Fit) -> FittedHead:
    """Compute the features of the split's images and fit a head with as many classes as the model has."""
    classes, seed = extract.model.config.classes, config.seed
    if len(split) > MAX_IMAGES:
        _, chosen = stratified(split.labels, MAX_IMAGES / len(split), seed)
        split = split.select(chosen)
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

    rest, dev = stratified(labels, DEV, seed, features.groups)  # copies of an image stay on one side
    trials: list[tuple[float, float, float | None]] = []  # loss, l2, accuracy
    regression: LogisticRegression | None = None
    for l2 in L2 if len(dev) else ():
        regression = fit(rest, l2, regression)
        loss, accuracy = _validate(regression, values[dev], labels[dev])
        trials.append((loss, l2, accuracy))
    best_loss, l2, accuracy = min(trials, key=lambda trial: trial[0]) if trials else (None, DEFAULT_L2, None)
    weight, bias = fit(slice(None), l2).linear_layer(classes)
    return FittedHead(
        weight=weight.float().cpu(),
        bias=bias.float().cpu(),
        images=len(values),
        l2=l2,
        accuracy=accuracy,
        loss=best_loss,
        class_weights=weights,
        failures=features.failures,
    )


def _validate(regression: LogisticRegression, values: NDArray[Any], labels: SplitLabels) -> tuple[float, float | None]:
    """Return loss and accuracy on images whose classes the regression knows."""
    logits = regression.logits(values).cpu()
    if isinstance(labels, SparseLabels):
        positive = torch.from_numpy(positive_cells(labels, regression.present))
        return float(sum_of_sigmoid_losses(logits, positive)) / logits.numel(), None
    targets = torch.from_numpy(np.searchsorted(regression.present, labels))
    return float(cross_entropy(logits, targets)), float((logits.argmax(dim=1) == targets).double().mean())
