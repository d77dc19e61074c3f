"""Probe frozen features: fit a simple classifier on the training split and score it on the test split.

The classes are those of the data; the model's own head is not used.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from vitkit.compute.features import FeatureExtractor, Features
from vitkit.data.partition import partition
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.splits import scoring_split, training_split, validation_split
from vitkit.errors import ConfigError, did_you_mean
from vitkit.evaluate import linear
from vitkit.evaluate.evaluation import Estimate
from vitkit.evaluate.fewshot import SEEDS, SHOTS, FewShotScore, few_shot
from vitkit.evaluate.held_out import data_to_score
from vitkit.evaluate.intervals import proportion
from vitkit.evaluate.linear import L2Trial
from vitkit.evaluate.metrics import Ints
from vitkit.evaluate.neighbours import NEIGHBOURS, TEMPERATURE, classify
from vitkit.model.options import check_count
from vitkit.text import few


@dataclass(frozen=True, kw_only=True)
class ProbeFeatures:
    """The features that a probe is fitted on, chosen by and scored on."""

    fit: Features
    dev: Features | None = None  # the data's own images for choosing
    test: Features
    names: tuple[str, ...]  # of these splits, in this order
    inputs: tuple[str, ...] = ()  # description of the preprocessing
    device: torch.device | str = "cpu"  # for a method that computes much
    widths: tuple[int, ...] = ()  # of layers that stand side by side

    def by_name(self) -> dict[str, Features]:
        splits = [features for features in (self.fit, self.dev, self.test) if features is not None]
        return dict(zip(self.names, splits, strict=True))


@dataclass(frozen=True, kw_only=True)
class LayerScore:
    """The score of one layer's features."""

    layer: str
    top1: Estimate
    dev: float  # accuracy on the images that the best layer is chosen by
    l2: float | None = None  # linear: the best of those tried


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    data: str
    method: str
    fitted: Mapping[str, int]  # splits and how many images of each were fitted or chosen by
    scored: Mapping[str, int]
    classes: tuple[str, ...]  # of the data
    inputs: tuple[str, ...]  # description of the preprocessing
    width: int  # features per image
    left_out: Mapping[str, str]  # skipped images: key → why it could not be decoded
    top1: Estimate | None = None  # of all methods but few-shot
    leaked: int = 0  # scored images that are copies of training images, or of their groups
    top1_without_leaked: Estimate | None = None
    layer: str | None = None  # whose features these are; None: the representation
    layers: tuple[LayerScore, ...] = ()  # all that were probed, from the bottom
    shots: tuple[FewShotScore, ...] = ()  # few-shot
    neighbours: int | None = None  # kNN: how many voted
    temperature: float | None = None
    l2: float | None = None  # linear: the best of those tried
    tried: tuple[L2Trial, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))  # ASCII: file names need not be text


@dataclass(frozen=True, kw_only=True)
class FewShot:
    shots: tuple[int, ...] = SHOTS
    seeds: int = SEEDS

    def __call__(self, features: ProbeFeatures, classes: int) -> dict[str, Any]:
        return {"shots": few_shot(features.fit, features.test, classes, self.shots, self.seeds)}


@dataclass(frozen=True, kw_only=True)
class Knn:
    neighbours: int = NEIGHBOURS

    def __call__(self, features: ProbeFeatures, classes: int) -> dict[str, Any]:
        voting = min(self.neighbours, len(features.fit))
        predictions = classify(
            features.fit.values, features.fit.labels, features.test.values, classes, neighbours=voting
        )
        return {**_accuracy(predictions, features.test), "neighbours": voting, "temperature": TEMPERATURE}


@dataclass(frozen=True, kw_only=True)
class Linear:
    def __call__(self, features: ProbeFeatures, classes: int) -> dict[str, Any]:
        fit, dev = (features.fit, features.dev) if features.dev is not None else linear.hold_out_dev(features.fit)
        classifier, l2, tried = linear.fit_linear_probe(fit, dev, features.device)
        return {**_accuracy(classifier.classify(features.test.values), features.test), "l2": l2, "tried": tried}


Method = FewShot | Knn | Linear
METHODS: dict[str, type[Method]] = {"fewshot": FewShot, "knn": Knn, "linear": Linear}


def pick_method(name: str, **options: Any) -> Method:
    """Return a method with its options; None means the default, and an option of another method is an error."""
    if name not in METHODS:
        raise ConfigError(f"method={name!r} is not known{did_you_mean(name, METHODS)}", choose_from=", ".join(METHODS))
    chosen = {option: value for option, value in options.items() if value is not None}
    known = {field.name for field in fields(METHODS[name])}
    for option in chosen.keys() - known:
        owner = next(other for other, kind in METHODS.items() if option in {field.name for field in fields(kind)})
        raise ConfigError(f"--{option} is for --method {owner}, not for {name}")
    for option, value in chosen.items():
        for count in value or (0,) if isinstance(value, tuple) else (value,):
            check_count(option, count, least=1)
    return METHODS[name](**chosen)


def probe(features: ProbeFeatures, data: Data, method: Method) -> ProbeResult:
    """Fit and score a method on features that were extracted from these data for it."""
    splits = features.by_name()
    images = {name: len(split) for name, split in splits.items()}
    failures = {key: reason for split in splits.values() for key, reason in split.failures.items()}
    name = next(name for name, kind in METHODS.items() if isinstance(method, kind))
    scored = features.names[-1]
    return ProbeResult(
        data=data.name,
        method=name,
        fitted={split: images[split] for split in features.names[:-1]},
        scored={scored: images[scored]},
        classes=data.classes,
        inputs=features.inputs,
        width=features.fit.values.shape[1],
        left_out=failures,
        **method(features, len(data.classes)),
    )


def extract_features(extract: FeatureExtractor, data: Data, method: Method) -> ProbeFeatures:
    """Extract the features of the images to fit and to score, and of those for choosing if the method chooses."""
    if data.multilabel:
        raise DataError(
            f"images of {data.name} have several labels; a probe predicts one label per image.", found=few(data.classes)
        )
    splits = partition(data)
    if splits.test is None:
        raise DataError(f"{data.name} has no images to score.")
    names = ("train", "test") if splits.held_out is not None else (training_split(data), scoring_split(data))
    features = ProbeFeatures(
        fit=extract(splits.train),
        test=extract(splits.test),
        names=names,
        inputs=tuple(extract.transform.describe()),
        device=extract.device,
        widths=extract.widths,
    )
    chosen = validation_split(data) if isinstance(method, Linear) else None
    if chosen is None or chosen in names or not data.splits[chosen].labelled:
        return features
    dev = data.splits[chosen]
    return replace(features, dev=extract(dev.select(dev.rows_with_labels())), names=(names[0], chosen, names[1]))


def held_out_as_test(run: str, data: Data) -> Data:
    """Return the data, with the images that a run held out of them as the test split and the others to fit."""
    held_out = data_to_score(run, data, None)
    if held_out.splits.keys() == data.splits.keys():
        return data
    source, test = data.splits[training_split(data)], held_out.splits["test"]
    return replace(data, splits={"train": source.select(~np.isin(source.rows, test.rows)), "test": test})


def _accuracy(predictions: Ints, test: Features) -> dict[str, Any]:
    """Return top-1 over all images, and without those that are copies of training images."""
    correct = predictions == test.labels
    scores: dict[str, Any] = {"top1": proportion(int(correct.sum()), len(test))}
    if test.leaked is not None and test.leaked.any():
        others = test.leaked == 0
        scores["leaked"] = int((~others).sum())
        scores["top1_without_leaked"] = (
            proportion(int(correct[others].sum()), int(others.sum())) if others.any() else None
        )
    return scores
