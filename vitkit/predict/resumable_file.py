"""A file with a row for each image, whose writing survives an interruption: the next call continues after the last row.

What its rows depend on is compared before a call continues: the model, the preprocessing, the engine, the images.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from vitkit.compute.features import weights_hash
from vitkit.data.sources.image_paths import unlabelled_split
from vitkit.data.transforms import EvalTransform
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.model.variants import name_of
from vitkit.predict.engines import Engine
from vitkit.predict.failures import Failures
from vitkit.predict.image_stream import ImageTask, Result, stream_results
from vitkit.predict.journal import Journal, Trait, journal_path
from vitkit.progress import Progress, no_progress
from vitkit.text import printable

Rows = Callable[[], Iterator[dict[str, Any]]]  # of the journal, from the first on, each time it is called


@dataclass(frozen=True, kw_only=True)
class RowFormat(Generic[Result]):
    """The rows of a file: how a result becomes one in the journal, and how the complete journal becomes the file."""

    record: Callable[[Result], Mapping[str, Any]]  # a row has "image" and "error"
    row: Any  # the type of a row
    write: Callable[[Path, Rows], None]
    check: Callable[[Mapping[str, Any]], None] = lambda row: None  # raises a VitkitError for a damaged row
    sidecars: Callable[[Path], Sequence[Path]] = lambda out: ()  # further files that `write` makes


def write_resumable(
    out: Path,
    task: ImageTask[Result],
    paths: Sequence[Path],
    format: RowFormat[Result],
    traits: Mapping[str, Trait],
    *,
    workers: int = 0,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> tuple[int, Failures]:
    """Write a row for each image; return how many were complete already, and the images that failed."""
    for path in (out, *format.sidecars(out)):
        if os.path.exists(path) and not overwrite and not _being_replaced(path, journal_path(out)):
            complete = ", and is complete" if path == out else ""
            raise ConfigError(
                f"{path} exists already{complete}; nothing was computed.", try_="another --out, or --overwrite"
            )
    journal = Journal(out, traits, row=format.row, check=format.check, restart=overwrite)
    done = journal.done
    try:
        split = unlabelled_split(paths)
        for result in stream_results(task, split, start=done, workers=workers, progress=progress):
            journal.write(format.record(result))
        failures = Failures(len(paths))
        for row in journal.rows():
            failures.add(row["image"], row["error"])
        format.write(out, journal.rows)
        journal.discard()
    finally:
        journal.close()
    return done, failures


def _being_replaced(path: Path, journal: Path) -> bool:
    """Return whether a call with `overwrite` was interrupted: its rows are newer than the file."""
    return journal.exists() and journal.stat().st_mtime >= path.stat().st_mtime


def model_trait(model: Model, transform: EvalTransform, source: str, head: str = "") -> Trait:
    """Return the model as a trait; `head` is a hash of the logits' layer, where the rows depend on it."""
    height, width = transform.image
    variant = f"{name_of(model.config) or 'sizes of its own'} at {height} x {width} px"
    return Trait(f"{weights_hash(model)} {head}".strip(), f"{variant}, from {source}" if source else variant)


def preprocessing_trait(transform: EvalTransform) -> Trait:
    # the name that EvalTransform has in journals
    preprocessing = f"Exact(image={transform.image!r}, preprocessing={transform.preprocessing!r})"
    return Trait(preprocessing, "; ".join(transform.describe()))


def engine_trait(engine: Engine) -> Trait:
    """Return the engine as a trait: a fast one is not exact."""
    name = engine.description.partition(":")[0]
    return Trait(name, name)


def images_trait(paths: Sequence[Path]) -> Trait:
    names = digest(str(path).encode("utf-8", "surrogateescape") + b"\0" for path in paths)
    return Trait(names, f"{len(paths):,}, the first {printable(str(paths[0]))}" if paths else "none")


def digest(chunks: Iterable[bytes]) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        hashed.update(chunk)
    return hashed.hexdigest()
