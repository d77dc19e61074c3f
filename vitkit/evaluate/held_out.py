"""Pictures that a run was not fitted on: where it set some aside from the data, an evaluation scores those again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from vitkit.data.partition import fingerprint, held_out_test, partition
from vitkit.data.sources.base import Data, DataError
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import canonical, scoring_split
from vitkit.errors import ConfigError, VitkitError
from vitkit.run_folder import CONFIG, RECORD, RunFolder

KEYS = {"source", "share", "seed", "fingerprint"}  # of the record that train/splits.py makes

log = logging.getLogger("vitkit")


def unseen(run: str, data: Data, split: str | None) -> Data:
    """The data, or the part that the run set aside from them, where otherwise its own training pictures were scored."""
    if seen := _seen_elsewhere(run, data, split):
        log.warning(seen)
        return data
    record = _set_aside(run)
    if record is None:
        _warn_if_fitted(run, data, split)
        return data
    source = record["source"]
    if split is not None:  # asked for by name, and given
        if (
            source in data.splits
            and source == (canonical(split) or split)
            and (fingerprint(data, source) == record["fingerprint"])
        ):
            log.warning("%s was fitted on most of these pictures; without --split, those it set aside are scored", run)
        return data
    if _scored(data) not in (source, None):
        return data
    aside = held_out_test(data, record)
    if aside is None:
        log.warning(
            "%s as it is now is not what %s was fitted on: all of it is scored; if the run has seen some of "
            "these pictures, the scores are too good",
            data.name,
            run,
        )
        return data
    log.warning(
        "scoring the %s pictures of %s that %s set aside (%.0f %% of %s, seed %s), not those it was fitted on",
        f"{len(aside.splits['test']):,}",
        data.name,
        run,
        100 * record["share"],
        source,
        record["seed"],
    )
    return aside


def _seen_elsewhere(run: str, data: Data, split: str | None) -> str:
    """How many of the pictures the run was fitted on, where it was given the folder above them, or one below. Names of
    splits and pictures are others there; their files are the same."""
    folder, name = RunFolder.of(run), _named(data, split)
    if folder is None or not (folder.path / CONFIG).is_file() or name not in data.splits:
        return ""
    try:
        config = folder.config()
        began, here = Path(config.data).resolve(), Path(data.name).resolve()
        related = began.is_relative_to(here) or here.is_relative_to(began)
        if began == here or not related or not began.is_dir() or not here.is_dir():
            return ""
        fitted = partition(open_data(began, label=config.label), **config.partition).train
    except VitkitError:  # settings of another version, data that are not what they were: nothing can be said
        return ""
    # names below the upper of the two folders; a million of them are compared in a second
    above = began if here.is_relative_to(began) else here
    known, asked = (
        {f"{root.relative_to(above).as_posix()}/{key}".removeprefix("./") for key in pictures.keys}
        for root, pictures in ((began, fitted), (here, data.splits[name]))
    )
    seen = len(known & asked)
    return (
        (
            f"{run} was fitted on {seen:,} of these {len(data.splits[name]):,} pictures: the scores say little about "
            "new ones"
        )
        if seen
        else ""
    )


def _warn_if_fitted(run: str, data: Data, split: str | None) -> None:
    """A split that the run was fitted on, asked for by name or the only one there is, tells nothing of new pictures."""
    folder = RunFolder.of(run)
    fitted = folder.record().get("data", {}).get("fingerprint") if folder else None
    name = _named(data, split)
    if fitted and name in data.splits and fingerprint(data, name) == fitted:
        log.warning("%s was fitted on these pictures: the scores say nothing about new ones", run)


def _set_aside(run: str) -> dict[str, Any] | None:
    """What run.json tells; None for weights that are no run's."""
    folder = RunFolder.of(run)
    record = folder.record().get("split") if folder else None
    if folder and record is not None and not (isinstance(record, dict) and record.keys() >= KEYS):
        raise ConfigError(
            f"{folder.path / RECORD} does not tell which pictures were set aside.", found=f"split = {record}"
        )
    return record


def _named(data: Data, split: str | None) -> str | None:
    """The split that is asked for, or is scored without being."""
    return (canonical(split) or split) if split else _scored(data)


def _scored(data: Data) -> str | None:
    try:
        return scoring_split(data)
    except DataError:
        return None
