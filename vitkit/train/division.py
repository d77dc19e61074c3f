"""Which pictures are for fitting, which for choosing, which for scoring; what the data lack is set aside, seeded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitkit.config import Fit
from vitkit.data.sources.base import Data, DataError, Split
from vitkit.data.sources.splits import choosing_split, fitting_split, scoring_split
from vitkit.data.split import stratified


@dataclass(frozen=True)
class Division:
    fit: Split
    dev: Split | None           # for choosing: rates, when to stop
    test: Split | None          # for scoring, once
    words: tuple[str, ...]      # "3,680 trainval", …: what is what
    set_aside: dict[str, Any] | None  # how `test` was cut out of a split, so that an evaluation can do it again


def divide(data: Data, config: Fit) -> Division:
    name = fitting_split(data)
    fit = data.splits[name]
    if config.objective == "masked-patch":  # labels are not looked at, and nothing is held back
        return Division(fit, None, None, (f"{len(fit):,} pictures of {name}",), None)
    fit = _labelled(fit)
    if not data.classes or len(fit) == 0:
        raise DataError(f"{data.name} has no labels to fit.", found=f"{len(data.splits[name]):,} pictures, {data.kind}",
                        try_="class folders or a manifest with labels; vitkit pretrain needs none")
    if len(data.classes) < 2:
        raise DataError(f"{data.name} has one class only, {data.classes[0]}: there is nothing to tell apart.")
    set_aside = None
    test = _scored(data, name)
    if test is None:
        set_aside = {"source": name, "share": config.test, "seed": config.seed, "fingerprint": fingerprint(data, name)}
        kept, aside = stratified(fit.labels, config.test, config.seed)
        if len(aside) == 0 or len(kept) == 0:
            raise DataError(f"{data.name} has {len(fit)} pictures: too few to set some aside for scoring.",
                            try_="more pictures, or a test/ folder of its own")
        fit, test = fit.select(kept), fit.select(aside)
        words = [f"{len(fit):,} to fit",
                 f"{len(test):,} to score, set aside from {name} ({config.test:.0%} of each class, seed {config.seed})"]
    else:
        words = [f"{len(fit):,} {name}", f"{len(test):,} {scoring_split(data)}"]
    chosen = choosing_split(data)
    dev = _labelled(data.splits[chosen]) if chosen else None
    if dev is None and config.dev:
        kept, aside = stratified(fit.labels, config.dev, config.seed + 1)
        if len(aside) == 0:
            raise DataError(f"{len(fit)} pictures are too few to set {config.dev:.0%} aside for choosing.")
        fit, dev = fit.select(kept), fit.select(aside)
        words.insert(1, f"{len(dev):,} of them set aside for choosing")
    elif dev is not None and chosen != scoring_split(data):
        words.insert(1, f"{len(dev):,} {chosen}")
    return Division(fit, dev, test, tuple(words), set_aside)


def fingerprint(data: Data, split: str) -> str:
    """Of names, classes and labels: enough to know a split again, without reading a picture."""
    chosen = data.splits[split]
    digest = hashlib.sha256()
    for text in (*data.classes, "\0", *chosen.keys):
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    digest.update(np.ascontiguousarray(chosen.labels).tobytes())
    return digest.hexdigest()


def held_out(data: Data, record: Mapping[str, Any]) -> Data | None:
    """The data with the pictures that a run set aside as their only split, `test`; None for other data."""
    source = record["source"]
    if source not in data.splits or fingerprint(data, source) != record["fingerprint"]:
        return None
    labelled = _labelled(data.splits[source])
    _, aside = stratified(labelled.labels, record["share"], record["seed"])
    return replace(data, splits={"test": labelled.select(aside)})


def _scored(data: Data, fitted: str) -> Split | None:
    try:
        name = scoring_split(data)
    except DataError:
        return None
    return None if name == fitted else _labelled(data.splits[name])


def _labelled(split: Split) -> Split:
    return split if split.labels.ndim == 2 or (split.labels >= 0).all() else split.select(split.labels >= 0)
