"""Score a run on images that it was not trained on: where it held some out of the data, an evaluation uses those."""

import contextlib
import logging
from pathlib import Path
from typing import Any

from vitkit.data.groups import restore
from vitkit.data.partition import held_out_test, is_fingerprint, partition
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.open import open_data
from vitkit.data.sources.splits import canonical_split, scoring_split, training_split, validation_split
from vitkit.data.training_images import join_validation
from vitkit.errors import ConfigError, VitkitError
from vitkit.run_folder import CONFIG, RunFolder
from vitkit.storage.urls import redacted

log = logging.getLogger("vitkit")


def data_to_score(run: str, data: Data, split: str | None) -> Data:
    """Return the data, or only the images that the run held out where the run was trained on the others.

    Images that the run knows as copies of its training images are marked as such (`Split.leaked`).
    """
    data = restore(data, _record(run).get("together")).data
    if overlap := _overlap_with_training(run, data, split):
        log.warning(overlap)
        return data
    record = _held_out_record(run)
    if record is None:
        _warn_if_trained_on(run, data, split)
        return data
    source = record["source"]
    if split is not None:  # named by the user, and scored as it is
        if (
            source in data.splits
            and source == (canonical_split(split) or split)
            and is_fingerprint(record["fingerprint"], data, source)
        ):
            log.warning("%s was trained on most of these images; without --split, those it held out are scored", run)
        return data
    if _default_split(data) not in (source, None):
        return data
    held_out = held_out_test(data, record)
    if held_out is None and "groups" in record and is_fingerprint(record["fingerprint"], data, source):
        raise ConfigError(
            f"the record of {redacted(run)} does not say which images were kept together, so those it held "
            "out are unknown.",
            try_="--split to score a split as it is",
        )
    if held_out is None and not _is_data_of(run, data):
        return data
    if held_out is None:
        log.warning(
            "%s has changed since %s was trained on it: all of its images are scored; if the run was trained on some "
            "of them, the scores are too high",
            data.name,
            run,
        )
        return data
    log.warning(
        "scoring the %s images of %s that %s held out (%.0f %% of %s, seed %s), not those it was trained on",
        f"{len(held_out.splits['test']):,}",
        data.name,
        redacted(run),
        100 * record["share"],
        source,
        record["seed"],
    )
    return held_out


def _is_data_of(run: str, data: Data) -> bool:
    """Return whether the run was trained on data of this name, though their images may have changed since."""
    folder = RunFolder.from_weights(run)
    if folder is None or not (folder.path / CONFIG).is_file():
        return False
    with contextlib.suppress(VitkitError):  # settings of another version
        return Path(folder.config().data).resolve() == Path(data.name).resolve()
    return False


def _overlap_with_training(run: str, data: Data, split: str | None) -> str:
    """Return a warning if the run was trained on some of the images through a parent or child folder of the data.

    Splits and images have other names there, but their files are the same.
    """
    folder, name = RunFolder.from_weights(run), _split_name(data, split)
    if folder is None or not (folder.path / CONFIG).is_file() or name not in data.splits:
        return ""
    try:
        config = folder.config()
        trained, scored = Path(config.data).resolve(), Path(data.name).resolve()
        related = trained.is_relative_to(scored) or scored.is_relative_to(trained)
        if trained == scored or not related or not trained.is_dir() or not scored.is_dir():
            return ""
        data_of_run = open_data(trained, label=config.label, task=config.data_task)
        data_of_run = join_validation(data_of_run) if config.train_on_val else data_of_run
        kept = restore(data_of_run, folder.record().get("together"))
        training_images = partition(kept.data, **config.partition).train
    except VitkitError:  # settings of another version, or data that have changed: the overlap is unknown
        return ""
    # names below the parent of the two folders; a million of them are compared in a second
    parent = trained if scored.is_relative_to(trained) else scored
    trained_files, scored_files = (
        {f"{root.relative_to(parent).as_posix()}/{key}".removeprefix("./") for key in images.keys}
        for root, images in ((trained, training_images), (scored, data.splits[name]))
    )
    overlap = len(trained_files & scored_files)
    if not overlap:
        return ""
    return (
        f"{redacted(run)} was trained on {overlap:,} of these {len(data.splits[name]):,} images: the scores say "
        "little about new images"
    )


def _warn_if_trained_on(run: str, data: Data, split: str | None) -> None:
    folder = RunFolder.from_weights(run)
    trained_on = folder.record().get("data", {}).get("fingerprint") if folder else None
    name = _split_name(data, split)
    if not folder or not trained_on or name not in data.splits:
        return
    joined = None
    with contextlib.suppress(VitkitError):  # settings of another version, or data without a test split
        if name in (training_split(data), validation_split(data)) and folder.config().train_on_val:
            joined = join_validation(data)
    trained_on_val = joined is not None and is_fingerprint(trained_on, joined, training_split(joined))
    if trained_on_val or is_fingerprint(trained_on, data, name):
        log.warning("%s was trained on these images: the scores say nothing about new images", redacted(run))


def _record(run: str) -> dict[str, Any]:
    folder = RunFolder.from_weights(run)
    return folder.record() if folder else {}


def _held_out_record(run: str) -> dict[str, Any] | None:
    """Return what run.json says about the images held out, or None for weights outside a run folder."""
    folder = RunFolder.from_weights(run)
    return folder.record().get("split") if folder else None


def _split_name(data: Data, split: str | None) -> str | None:
    return (canonical_split(split) or split) if split else _default_split(data)


def _default_split(data: Data) -> str | None:
    try:
        return scoring_split(data)
    except DataError:
        return None
