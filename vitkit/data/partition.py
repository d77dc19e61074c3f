"""Which pictures are for fitting, which for choosing, which for scoring; what the data lack is set aside, seeded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitkit.config.schema import Fit
from vitkit.data.sources.base import Data, DataError, Split
from vitkit.data.sources.splits import choosing_split, fitting_split, scoring_split
from vitkit.data.split import stratified


@dataclass(frozen=True)
class Division:
    fit: Split
    dev: Split | None  # for choosing: rates, when to stop
    test: Split | None  # for scoring, once
    scored: str  # its name: test, val, or held-out where it was cut from another
    words: tuple[str, ...]  # "3,680 trainval", …: what is what
    set_aside: dict[str, Any] | None  # how `test` was cut out of a split, so that an evaluation can do it again


def divide(data: Data, config: Fit) -> Division:
    name = fitting_split(data)
    fit = data.splits[name]
    if config.objective == "masked-patch":  # labels are not looked at, and nothing is held back
        return Division(fit, None, None, "", (f"{len(fit):,} pictures of {name}",), None)
    fit, set_aside = _labelled(fit), None
    _check(data, name, fit)
    scored = _scored(data, name)
    if scored is None:
        set_aside = {
            "source": name,
            "share": config.test,
            "seed": config.split_seed,
            "fingerprint": fingerprint(data, name),
        }
        fit, test = _cut(fit, config.test, config.split_seed, "scoring", "more pictures, or a test/ folder")
        words = [
            f"{len(fit):,} to fit",
            f"{len(test):,} to score, set aside from {name} ({config.test:.0%} of each class)",
        ]
    else:
        test = _labelled(data.splits[scored])
        words = [f"{len(fit):,} {name}", f"{len(test):,} {scored}"]
    chosen = _chosen(data, scored, config)
    dev = _labelled(data.splits[chosen]) if chosen else None
    if dev is not None and chosen != scored:
        words.insert(1, f"{len(dev):,} {chosen}")
    if dev is None and config.dev:
        fit, dev = _cut(fit, config.dev, config.split_seed + 1, "choosing", "more pictures, or a val/ folder")
        words.insert(1, f"{len(dev):,} of them set aside for choosing")
    return Division(fit, dev, test, scored or "held-out", tuple(words), set_aside)


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


def _check(data: Data, name: str, fit: Split) -> None:
    """That there is something to learn."""
    if not data.classes or len(fit) == 0:
        raise DataError(
            f"{data.name} has no labels to fit.",
            found=f"{len(data.splits[name]):,} pictures, {data.kind}",
            **({"note": data.notes} if data.notes else {}),
            try_="class folders or a manifest with labels; vitkit pretrain needs none",
        )
    present = np.flatnonzero(fit.per_class(len(data.classes)))
    if len(present) < 2 and not data.multilabel:
        raise DataError(
            f"{data.name} has pictures of one class only to fit, {data.classes[present[0]]}: there is "
            "nothing to tell apart.",
            try_="a folder for each of two classes or more; that folder itself, if they are inside it",
        )


def _scored(data: Data, fitted: str) -> str | None:
    """The split to score, unless fitting sees its pictures."""
    try:
        name = scoring_split(data)
    except DataError:
        return None
    return None if name == fitted else name


def _chosen(data: Data, scored: str | None, config: Fit) -> str | None:
    """The split to choose by. One that has to score as well may be watched, but choosing would flatter the score."""
    name = choosing_split(data)
    if name is None or not data.splits[name].labelled or (name == scored and (config.dev or config.patience)):
        return None
    return name


def _cut(split: Split, share: float, seed: int, purpose: str, advice: str) -> tuple[Split, Split]:
    kept, aside = stratified(split.labels, share, seed)
    if len(aside) == 0 or len(kept) == 0:
        raise DataError(
            f"{len(split)} pictures, no two of a class, are too few to set some aside for {purpose}.", try_=advice
        )
    return split.select(kept), split.select(aside)


def _labelled(split: Split) -> Split:
    return split if split.labels.ndim == 2 or (split.labels >= 0).all() else split.select(split.labels >= 0)
