"""Predictions for many image files: decoded by data workers, in order, never all in memory."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch

from vitkit.compute.features import weights_hash
from vitkit.data.loader import Batch, SplitDataset, sequential_batches
from vitkit.data.sources.dataset import Split
from vitkit.data.sources.image_paths import unlabelled_split
from vitkit.devices import pick_workers
from vitkit.errors import ConfigError
from vitkit.model.variants import name_of
from vitkit.predict.classifier import Classifier
from vitkit.predict.failures import Failures
from vitkit.predict.journal import Journal, Trait, journal_path
from vitkit.predict.prediction import Prediction, StoredRow, with_first_answer
from vitkit.predict.rows import check_output_path, write_rows
from vitkit.progress import Progress, no_progress
from vitkit.text import few, printable

MIN_IMAGES_FOR_WORKERS = 257  # fewer are decoded within a second, which is not worth a process


def workers_for(images: int, requested: int | None, device: torch.device) -> int:
    """Return the number of data workers for so many images: as requested, none for few, else the device's number."""
    return 0 if requested is None and images < MIN_IMAGES_FOR_WORKERS else pick_workers(requested, device, 1)


def predict_files(
    classifier: Classifier,
    paths: Sequence[Path],
    *,
    start: int = 0,
    workers: int = 0,
    progress: Progress = no_progress,
) -> Iterator[Prediction]:
    """Yield the predictions for all images from index `start` on, in order; broken ones have an `error`."""
    # batches begin where they would in one go: the last bits of a product depend on the batch that it is computed in
    repeated = start % classifier.engine.batch
    split = unlabelled_split(paths[start - repeated :])
    dataset = SplitDataset(split=split, transform=classifier.transform, channels=classifier.model.config.channels)
    pin_memory = classifier.device.type == "cuda"
    batches = sequential_batches(dataset, classifier.engine.batch, workers=workers, pin_memory=pin_memory)
    predictions = (prediction for batch in batches for prediction in _predict_batch(classifier, split, batch))
    yield from progress(islice(predictions, repeated, None), len(split) - repeated, "predicting")


def _predict_batch(classifier: Classifier, split: Split, batch: Batch) -> list[Prediction]:
    predictions = {
        index: classifier.prediction(name=split.keys[index], error=reason) for index, reason in batch.failures
    }
    if len(batch.images):
        rows = classifier.probabilities(batch.images)
        for index, row in zip(batch.indices.tolist(), rows, strict=True):
            predictions[index] = classifier.prediction(row, name=split.keys[index])
    return [predictions[index] for index in sorted(predictions)]


def predict_into(
    out: Path,
    classifier: Classifier,
    paths: Sequence[Path],
    *,
    top: int,
    workers: int = 0,
    overwrite: bool = False,
    source: str = "",
    csv_raw: bool = False,
    progress: Progress = no_progress,
) -> tuple[int, Failures]:
    """Write rows into a file, .csv, .jsonl or .parquet; after an interruption, continue after the last row.

    Return how many rows were complete already, and the images that could not be read. `source` is where the model came
    from, for messages. csv_raw writes CSV without the guard against formulas.
    """
    check_output_path(out)
    if os.path.exists(out) and not overwrite and not _being_replaced(out):
        raise ConfigError(
            f"{out} exists already, and is complete; nothing was computed.", try_="another --out, or --overwrite"
        )
    top = min(top, len(classifier.labels))
    journal = Journal(out, _traits(classifier, paths, top, source), row=StoredRow, restart=overwrite)
    done = journal.done
    try:
        for prediction in predict_files(classifier, paths, start=done, workers=workers, progress=progress):
            journal.write(prediction.record(top))
        failures = Failures(len(paths))
        for row in journal.rows():
            failures.add(row["image"], row["error"])
        # older versions wrote rows without the first answer
        write_rows(out, map(with_first_answer, journal.rows()), top, csv_raw=csv_raw)
        journal.discard()
    finally:
        journal.close()
    return done, failures


def _being_replaced(out: Path) -> bool:
    """Return whether a call with `overwrite` was interrupted: its rows are newer than the file."""
    journal = journal_path(out)
    return journal.exists() and journal.stat().st_mtime >= out.stat().st_mtime


def _traits(classifier: Classifier, paths: Sequence[Path], top: int, source: str) -> dict[str, Trait]:
    """Return what rows depend on; the engine too, for a fast one is not exact."""
    model, transform, labels = classifier.model, classifier.transform, classifier.labels
    height, width = transform.image
    head = _digest(tensor.float().cpu().numpy().tobytes() for tensor in model.head.state_dict().values())
    names = _digest(str(path).encode("utf-8", "surrogateescape") + b"\0" for path in paths)
    engine = classifier.engine.description.partition(":")[0]
    variant = f"{name_of(model.config) or 'sizes of its own'} at {height} x {width} px"
    # the name that EvalTransform has in journals
    preprocessing = f"Exact(image={transform.image!r}, preprocessing={transform.preprocessing!r})"
    return {
        "model": Trait(f"{weights_hash(model)} {head}", f"{variant}, from {source}" if source else variant),
        "class names": Trait(_digest([repr(labels).encode()]), few(labels, 3)),
        "preprocessing": Trait(preprocessing, "; ".join(transform.describe())),
        "engine": Trait(engine, engine),
        "--top": Trait(top, f"{top}"),
        "images": Trait(names, f"{len(paths):,}, the first {printable(str(paths[0]))}" if paths else "none"),
    }


def _digest(chunks: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
