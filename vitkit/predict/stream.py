"""Many pictures, one after another: read beside the computing, answered in order, never all in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from vitkit.data.loader import Batch, Reader, batches_in_order
from vitkit.data.sources.base import Split
from vitkit.data.sources.named import as_split
from vitkit.errors import ConfigError
from vitkit.evaluate.features import weights_hash
from vitkit.model.variants import name_of
from vitkit.predict.classifier import Classifier
from vitkit.predict.journal import Journal, Trait, part_of
from vitkit.predict.prediction import Prediction
from vitkit.predict.rows import check_name, write_rows
from vitkit.progress import Progress, no_progress
from vitkit.text import few, printable


def predict_files(
    classifier: Classifier,
    paths: Sequence[Path],
    *,
    start: int = 0,
    workers: int = 0,
    progress: Progress = no_progress,
) -> Iterator[Prediction]:
    """The predictions of all pictures from `start` on, in order; broken ones have an `error`."""
    split = as_split(paths[start:])
    reader = Reader(split=split, transform=classifier.exact, channels=classifier.model.config.channels)
    batches = batches_in_order(reader, classifier.engine.batch, workers=workers, pin=classifier.device.type == "cuda")
    predictions = (prediction for batch in batches for prediction in _answers(classifier, split, batch))
    yield from progress(predictions, len(split), "predicting")


def _answers(classifier: Classifier, split: Split, batch: Batch) -> list[Prediction]:
    answered = {
        index: Prediction(classifier.labels, name=split.keys[index], error=reason) for index, reason in batch.failures
    }
    if len(batch.images):
        told = classifier.probabilities(batch.images)
        for index, row in zip(batch.indices.tolist(), told, strict=True):
            answered[index] = Prediction(classifier.labels, row, name=split.keys[index])
    return [answered[index] for index in sorted(answered)]


def predict_into(
    out: Path,
    classifier: Classifier,
    paths: Sequence[Path],
    *,
    top: int,
    workers: int = 0,
    overwrite: bool = False,
    source: str = "",
    progress: Progress = no_progress,
) -> tuple[int, int]:
    """Rows into a file, .csv, .jsonl or .parquet; called again after a stop, it goes on behind the last row.

    How many rows were there already, and how many pictures could not be read. `source` is where the model came from.
    """
    check_name(out)
    if os.path.exists(out) and not overwrite and not _being_replaced(out):
        raise ConfigError(f"{out} exists already; nothing was written.", try_="another --out, or --overwrite")
    top = min(top, len(classifier.labels))
    journal = Journal(out, _belongs_to(classifier, paths, top, source), anew=overwrite)
    taken_up = journal.done
    try:
        for prediction in predict_files(classifier, paths, start=taken_up, workers=workers, progress=progress):
            journal.write(prediction.record(top))
        write_rows(out, journal.rows(), top)
        failed = sum(row["error"] is not None for row in journal.rows())
        journal.discard()
    finally:
        journal.close()
    return taken_up, failed


def _being_replaced(out: Path) -> bool:
    """By a call with `overwrite` that was stopped: whose rows are newer than the file."""
    part = part_of(out)
    return part.exists() and part.stat().st_mtime >= out.stat().st_mtime


def _belongs_to(classifier: Classifier, paths: Sequence[Path], top: int, source: str) -> dict[str, Trait]:
    """What rows depend on; the engine too, for fast answers are not exact ones."""
    model, (height, width), labels = classifier.model, classifier.exact.image, classifier.labels
    head = _digest(tensor.float().cpu().numpy().tobytes() for tensor in model.head.state_dict().values())
    names = _digest(str(path).encode("utf-8", "surrogateescape") + b"\0" for path in paths)
    computes = classifier.engine.words.partition(":")[0]
    described = f"{name_of(model.config) or 'sizes of its own'} at {height} x {width} px"
    return {
        "model": Trait(f"{weights_hash(model)} {head}", f"{described}, from {source}" if source else described),
        "class names": Trait(_digest([repr(labels).encode()]), few(labels, 3)),
        "preprocessing": Trait(repr(classifier.exact), "; ".join(classifier.exact.describe())),
        "computing": Trait(computes, computes),
        "--top": Trait(top, f"{top}"),
        "pictures": Trait(names, f"{len(paths):,}, the first {printable(str(paths[0]))}" if paths else "none"),
    }


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
