"""Predictions for many image files, one after the other or as rows of a file that survive an interruption."""

import os
from collections.abc import Iterator, Sequence

import numpy as np

from vitkit.data.sources.dataset import Split
from vitkit.data.sources.image_paths import unlabelled_split
from vitkit.job_shard import JobShard
from vitkit.model.build import Model
from vitkit.predict.answer_columns import AnswerColumns, answer_columns, read_answers
from vitkit.predict.answer_parts import answer_part, read_answer_part
from vitkit.predict.classifier import Classifier
from vitkit.predict.failures import Failures
from vitkit.predict.image_stream import stream_outputs
from vitkit.predict.journal import Trait
from vitkit.predict.prediction import Prediction
from vitkit.predict.resumable_file import (
    BlockFormat,
    RowsJob,
    digest,
    engine_trait,
    model_trait,
    preprocessing_trait,
)
from vitkit.predict.rows import AnswerFormat, check_output_path, write_answers
from vitkit.predict.sharded import JobOutput, write_rows
from vitkit.progress import Progress, no_progress
from vitkit.text import few

Images = Sequence[str | os.PathLike[str]] | Split  # the names of files, or images of any source
FILE_NAME = "predictions.parquet"  # of the one file in an output folder


def predict_files(
    classifier: Classifier,
    images: Images,
    *,
    workers: int = 0,
    progress: Progress = no_progress,
) -> Iterator[Prediction]:
    """Yield the predictions for all images, in order; broken ones have an `error`."""
    split = unlabelled_split(images)
    for batch in stream_outputs(classifier.task, split, workers=workers, progress=progress):
        probabilities = batch.column(0, len(classifier.labels), np.float32)
        for row, name in enumerate(split.keys[batch.first : batch.first + len(batch)]):
            error = batch.errors.get(row)
            values = probabilities[row] if error is None else None
            yield classifier.prediction(values, name=name, error=error)


def stream_answers(
    classifier: Classifier,
    images: Images,
    top: int,
    *,
    workers: int = 0,
    progress: Progress = no_progress,
) -> Iterator[tuple[list[str], AnswerColumns]]:
    """Yield the names of some images and the most likely classes of each, in order, batch by batch."""
    top = min(top, len(classifier.labels))
    split = unlabelled_split(images)
    for batch in stream_outputs(classifier.answers_task(top), split, workers=workers, progress=progress):
        names = [*split.keys[batch.first : batch.first + len(batch)]]
        yield names, answer_columns(batch, top, classifier.thresholds)


def predict_into(
    out: str | os.PathLike[str],
    classifier: Classifier,
    images: Images,
    *,
    top: int,
    workers: int = 0,
    overwrite: bool = False,
    source: str = "",
    csv_raw: bool = False,
    shard: JobShard | None = None,
    progress: Progress = no_progress,
) -> tuple[int, Failures]:
    """Write rows into a file, .csv, .jsonl or .parquet; after an interruption, continue after the last batch.

    The file may be a URL: it is written on disk, and uploaded when it is complete.
    Return how many rows were complete already, and the images that could not be read. `source` is where the model came
    from, for messages. csv_raw writes CSV without the guard against formulas. `out` may be a folder, for part files of
    many processes: with `shard`, this one computes its part of them; without, it puts them together.
    """
    check_output_path(out)
    job = answers_job(classifier, top, source=source, csv_raw=csv_raw)
    output = JobOutput.of(out, FILE_NAME)
    return write_rows(
        output, job, unlabelled_split(images), shard, workers=workers, overwrite=overwrite, progress=progress
    )


def answers_job(classifier: Classifier, top: int, *, source: str = "", csv_raw: bool = False) -> RowsJob[AnswerColumns]:
    """Return the job of predicting the classes of images as rows; `source` is where the model came from."""
    top, labels, thresholds = min(top, len(classifier.labels)), classifier.labels, classifier.thresholds
    form = AnswerFormat(labels=labels, top=top, multilabel=classifier.multilabel, csv_raw=csv_raw)
    return RowsJob(
        task=classifier.answers_task(top),
        format=BlockFormat(
            block=lambda batch: answer_columns(batch, top, thresholds),
            read=lambda stored: read_answers(stored, labels, top, classifier.multilabel),
            write=lambda path, blocks, images: write_answers(path, blocks(), form),
            part=lambda names, blocks: answer_part(names, AnswerColumns.join(blocks), form),
            read_part=lambda content: read_answer_part(content, form),
        ),
        traits=_traits(classifier, top, source),
    )


def make_answers_job(
    model: Model, device: str, *, top: int, labels: Sequence[str] | None, source: str, csv_raw: bool
) -> RowsJob[AnswerColumns]:
    """Return the job of a model on a device, as a worker of another machine makes it."""
    return answers_job(Classifier(model, device=device, labels=labels), top, source=source, csv_raw=csv_raw)


def _traits(classifier: Classifier, top: int, source: str) -> dict[str, Trait]:
    """Return what rows depend on besides the images."""
    model, transform, labels = classifier.model, classifier.transform, classifier.labels
    head = digest(tensor.float().cpu().numpy().tobytes() for tensor in model.head.state_dict().values())
    return {
        "model": model_trait(model, transform, source, head),
        "class names": Trait(digest([repr(labels).encode()]), few(labels, 3)),
        "preprocessing": preprocessing_trait(transform),
        "engine": engine_trait(classifier.engine),
        "--top": Trait(top, f"{top}"),
    }
