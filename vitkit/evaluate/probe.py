"""How much of data a frozen representation knows: a simple learner on top of it, fitted on train, scored on test.

The classes are the data's; the model's own head is not asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from vitkit.data.partition import partition
from vitkit.data.sources.base import Data, DataError
from vitkit.data.sources.splits import choosing_split, fitting_split, scoring_split
from vitkit.errors import ConfigError
from vitkit.evaluate import linear
from vitkit.evaluate.evaluation import Estimate
from vitkit.evaluate.features import Extractor, Features
from vitkit.evaluate.fewshot import SEEDS, SHOTS, Shots, few_shot
from vitkit.evaluate.intervals import share
from vitkit.evaluate.linear import Tried
from vitkit.evaluate.metrics import Ints
from vitkit.evaluate.neighbours import NEIGHBOURS, TEMPERATURE, classify
from vitkit.evaluate.unseen import unseen
from vitkit.text import counted, few

SHOWN = 5  # pictures left out; --json has all of them


@dataclass(frozen=True, kw_only=True)
class Parts:
    fit: Features
    dev: Features | None = None  # pictures that the data have for choosing
    test: Features
    names: tuple[str, ...]  # of the splits that these are, in this order
    inputs: tuple[str, ...] = ()  # how pictures were prepared, in words
    device: torch.device | str = "cpu"  # where a learner may compute that has much to do

    def by_name(self) -> dict[str, Features]:
        there = [part for part in (self.fit, self.dev, self.test) if part is not None]
        return dict(zip(self.names, there, strict=True))


@dataclass(frozen=True, kw_only=True)
class Probe:
    data: str
    method: str
    fitted: Mapping[str, int]  # splits and how many pictures of each were learnt from or chosen by
    scored: Mapping[str, int]
    classes: tuple[str, ...]  # of the data
    inputs: tuple[str, ...]  # how pictures were prepared, in words
    width: int  # numbers per picture
    left_out: Mapping[str, str]  # pictures that could not be decoded, and why
    top1: Estimate | None = None  # of all methods but few-shot
    shots: tuple[Shots, ...] = ()  # few-shot
    neighbours: int | None = None  # kNN: that voted
    temperature: float | None = None
    l2: float | None = None  # linear: chosen among those tried
    tried: tuple[Tried, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))  # ASCII: file names need not be text


@dataclass(frozen=True, kw_only=True)
class FewShot:
    shots: tuple[int, ...] = SHOTS
    seeds: int = SEEDS

    def __call__(self, parts: Parts, classes: int) -> dict[str, Any]:
        return {"shots": few_shot(parts.fit, parts.test, classes, self.shots, self.seeds)}


@dataclass(frozen=True, kw_only=True)
class Knn:
    neighbours: int = NEIGHBOURS

    def __call__(self, parts: Parts, classes: int) -> dict[str, Any]:
        voting = min(self.neighbours, len(parts.fit))
        answers = classify(parts.fit.values, parts.fit.labels, parts.test.values, classes, neighbours=voting)
        return {"top1": _share(answers, parts.test), "neighbours": voting, "temperature": TEMPERATURE}


@dataclass(frozen=True, kw_only=True)
class Linear:
    def __call__(self, parts: Parts, classes: int) -> dict[str, Any]:
        fit, dev = (parts.fit, parts.dev) if parts.dev is not None else linear.set_aside(parts.fit)
        classifier, l2, tried = linear.learn(fit, dev, parts.device)
        return {"top1": _share(classifier.classify(parts.test.values), parts.test), "l2": l2, "tried": tried}


Method = FewShot | Knn | Linear
METHODS: dict[str, type[Method]] = {"fewshot": FewShot, "knn": Knn, "linear": Linear}


def pick_method(name: str, **options: Any) -> Method:
    """Options that were not given (None) keep the method's defaults; one that it does not have is a mistake."""
    given = {option: value for option, value in options.items() if value is not None}
    known = {field.name for field in fields(METHODS[name])}
    for option in given.keys() - known:
        owner = next(other for other, kind in METHODS.items() if option in {field.name for field in fields(kind)})
        raise ConfigError(f"--{option} is for --method {owner}, not for {name}")
    return METHODS[name](**given)


def probe(parts: Parts, data: Data, method: Method) -> Probe:
    """`parts` are gathered from these data for this method."""
    pictures = {name: len(part) for name, part in parts.by_name().items()}
    left_out = {key: reason for part in parts.by_name().values() for key, reason in part.failures.items()}
    name = next(name for name, kind in METHODS.items() if isinstance(method, kind))
    scored = parts.names[-1]
    return Probe(
        data=data.name,
        method=name,
        fitted={split: pictures[split] for split in parts.names[:-1]},
        scored={scored: pictures[scored]},
        classes=data.classes,
        inputs=parts.inputs,
        width=parts.fit.values.shape[1],
        left_out=left_out,
        **method(parts, len(data.classes)),
    )


def gather(extract: Extractor, data: Data, method: Method) -> Parts:
    """Features of the pictures to fit and to score; of those for choosing where the method chooses something."""
    if data.multilabel:
        raise DataError(
            f"pictures of {data.name} have several labels; a probe gives each one answer.", found=few(data.classes)
        )
    splits = partition(data)
    if splits.test is None:
        raise DataError(f"{data.name} has nothing to score on.")
    names = ("train", "test") if splits.held_out is not None else (fitting_split(data), scoring_split(data))
    parts = Parts(
        fit=extract(splits.train),
        test=extract(splits.test),
        names=names,
        inputs=tuple(extract.exact.describe()),
        device=extract.device,
    )
    chosen = choosing_split(data) if isinstance(method, Linear) else None
    if chosen is None or chosen in names or not data.splits[chosen].labelled:
        return parts
    dev = data.splits[chosen]
    return replace(parts, dev=extract(dev.select(dev.labels >= 0)), names=(names[0], chosen, names[1]))


def apart(run: str, data: Data) -> Data:
    """The data; where a run set some of them aside, those are scored and none that its weights have seen."""
    aside = unseen(run, data, None)
    if aside is data:
        return data
    whole, test = data.splits[fitting_split(data)], aside.splits["test"]
    return replace(data, splits={"train": whole.select(~np.isin(whole.rows, test.rows)), "test": test})


def print_probe(found: Probe) -> None:
    ((scored, pictures),) = found.scored.items()
    fitted = " and ".join(f"{number:,} {name}" for name, number in found.fitted.items())
    _line(
        "data",
        f"{found.data}: {fitted} to fit, {pictures:,} {scored} to score, {counted(len(found.classes), 'class')}",
    )
    for number, how in enumerate(found.inputs):
        _line("" if number else "inputs", how)
    _line("features", f"{counted(found.width, 'number')} per picture, frozen")
    for one in found.shots:
        spread = "" if one.spread is None else f" ± {100 * one.spread:.1f}"
        short = f"; {counted(one.short, 'class has', 'classes have')} fewer" if one.short else ""
        _line(
            counted(one.shots, "shot"),
            f"{100 * one.mean:.1f} %{spread}   {counted(len(one.accuracies), 'seed')}, "
            f"{counted(one.pictures, 'picture')} to fit{short}",
        )
    if found.neighbours is not None:
        _line("knn", f"{counted(found.neighbours, 'neighbour')}, cosine, votes exp(similarity / {found.temperature:g})")
    if found.l2 is not None:
        _line("linear", f"logistic regression, l2 = {found.l2:g}, the best of {len(found.tried)} on dev pictures")
    if found.top1 is not None:
        low, high = 100 * found.top1.low, 100 * found.top1.high
        _line("top-1", f"{100 * found.top1.value:.2f} %   95 % interval {low:.1f} to {high:.1f}")
    for key, reason in [*found.left_out.items()][:SHOWN]:
        _line("left out", f"{key}: {reason}")
    if len(found.left_out) > SHOWN:
        _line("", f"… and {len(found.left_out) - SHOWN:,} more; --json has all of them")


def _line(name: str, text: str) -> None:
    print(f"{name:<11} {text}")


def _share(answers: Ints, test: Features) -> Estimate:
    return share(int((answers == test.labels).sum()), len(test))
