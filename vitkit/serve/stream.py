"""Many pictures, one after another: read beside the computing, answered in order, never all in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vitkit.data.loader import Batch, Reader, batches_in_order
from vitkit.data.sources.base import Split
from vitkit.data.sources.named import as_split
from vitkit.errors import ConfigError
from vitkit.evaluate.features import weights_hash
from vitkit.serve.journal import Journal
from vitkit.serve.predict import Classifier
from vitkit.serve.prediction import Prediction
from vitkit.serve.rows import check_name, write_rows
from vitkit.train.score import Watch


def predict_files(classifier: Classifier, paths: Sequence[Path], *, start: int = 0, workers: int = 0,
                  watch: Watch = lambda items, total, what: iter(items)) -> Iterator[Prediction]:
    """The predictions of all pictures from `start` on, in order; broken ones have an `error`."""
    split = as_split(paths[start:])
    reader = Reader(split=split, transform=classifier.exact, channels=classifier.model.config.channels)
    batches = batches_in_order(reader, classifier.engine.batch, workers=workers, pin=classifier.device.type == "cuda")
    predictions = (prediction for batch in batches for prediction in _answers(classifier, split, batch))
    yield from watch(predictions, len(split), "predicting")


def _answers(classifier: Classifier, split: Split, batch: Batch) -> list[Prediction]:
    answered = {index: Prediction(classifier.labels, name=split.keys[index], error=reason)
                for index, reason in batch.failures}
    if len(batch.images):
        told = classifier.probabilities(batch.images)
        for index, row in zip(batch.indices.tolist(), told, strict=True):
            answered[index] = Prediction(classifier.labels, row, name=split.keys[index])
    return [answered[index] for index in sorted(answered)]


def predict_into(out: Path, classifier: Classifier, paths: Sequence[Path], *, top: int, workers: int = 0,
                 overwrite: bool = False, watch: Watch = lambda items, total, what: iter(items)) -> tuple[int, int]:
    """Rows into a file, .csv, .jsonl or .parquet; called again after a stop, it goes on behind the last row.

    How many rows were there already, and how many pictures could not be read.
    """
    check_name(out)
    if os.path.exists(out) and not overwrite:
        raise ConfigError(f"{out} exists already; nothing was written.", try_="another --out, or --overwrite")
    journal = Journal(out, _identity(classifier, paths, top), anew=overwrite)
    taken_up = journal.done
    try:
        for prediction in predict_files(classifier, paths, start=taken_up, workers=workers, watch=watch):
            journal.write(prediction.record(top))
        write_rows(out, journal.rows(), top)
        failed = sum(row["error"] is not None for row in journal.rows())
        journal.discard()
    finally:
        journal.close()
    return taken_up, failed


def _identity(classifier: Classifier, paths: Sequence[Path], top: int) -> dict[str, Any]:
    """What rows depend on; the engine too, for fast answers are not exact ones."""
    names = hashlib.blake2b(digest_size=16)
    for path in paths:
        names.update(str(path).encode("utf-8", "surrogateescape") + b"\0")
    head = hashlib.blake2b(repr(classifier.labels).encode(), digest_size=16)
    for tensor in classifier.model.head.state_dict().values():
        head.update(tensor.float().cpu().numpy().tobytes())
    return {"model": weights_hash(classifier.model), "head": head.hexdigest(), "preprocessing": repr(classifier.exact),
            "computes": classifier.engine.words.partition(":")[0], "top": top, "pictures": len(paths),
            "names": names.hexdigest()}
