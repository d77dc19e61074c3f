"""Predictions for many image files, one after the other or as rows of a file that survive an interruption."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from vitkit.data.sources.image_paths import unlabelled_split
from vitkit.predict.classifier import Classifier
from vitkit.predict.failures import Failures
from vitkit.predict.image_stream import stream_results
from vitkit.predict.journal import Trait
from vitkit.predict.prediction import Prediction, StoredRow, with_first_answer
from vitkit.predict.resumable_file import (
    RowFormat,
    Rows,
    digest,
    engine_trait,
    images_trait,
    model_trait,
    preprocessing_trait,
    write_resumable,
)
from vitkit.predict.rows import check_output_path, write_rows
from vitkit.progress import Progress, no_progress
from vitkit.text import few


def predict_files(
    classifier: Classifier,
    paths: Sequence[Path],
    *,
    start: int = 0,
    workers: int = 0,
    progress: Progress = no_progress,
) -> Iterator[Prediction]:
    """Yield the predictions for all images from index `start` on, in order; broken ones have an `error`."""
    return stream_results(classifier.task, unlabelled_split(paths), start=start, workers=workers, progress=progress)


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
    top = min(top, len(classifier.labels))

    def write(path: Path, rows: Rows) -> None:
        # older versions wrote rows without the first answer
        write_rows(path, map(with_first_answer, rows()), top, csv_raw=csv_raw)

    return write_resumable(
        out,
        classifier.task,
        paths,
        RowFormat(record=lambda prediction: prediction.record(top), row=StoredRow, write=write),
        _traits(classifier, paths, top, source),
        workers=workers,
        overwrite=overwrite,
        progress=progress,
    )


def _traits(classifier: Classifier, paths: Sequence[Path], top: int, source: str) -> dict[str, Trait]:
    """Return what rows depend on."""
    model, transform, labels = classifier.model, classifier.transform, classifier.labels
    head = digest(tensor.float().cpu().numpy().tobytes() for tensor in model.head.state_dict().values())
    return {
        "model": model_trait(model, transform, source, head),
        "class names": Trait(digest([repr(labels).encode()]), few(labels, 3)),
        "preprocessing": preprocessing_trait(transform),
        "engine": engine_trait(classifier.engine),
        "--top": Trait(top, f"{top}"),
        "images": images_trait(paths),
    }
