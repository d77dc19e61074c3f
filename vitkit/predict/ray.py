"""Prediction and embedding as callable classes for the `map_batches` of Ray Data.

    from vitkit.predict.ray import Predictor

    images = ray.data.from_items([{"path": "a.jpg"}, {"path": "b.jpg"}])
    answers = images.map_batches(Predictor, fn_constructor_args=("runs/pets",), batch_size=64, concurrency=4)

A batch has a column "path", names of files, or "bytes", encoded images. Its columns stay, and those of the answers are
added. A missing or unreadable image is a row with an error, so that one bad file does not end a job of millions.

Shapes: n images of the batch, k = top the most likely classes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.compute.embedding_model import EmbeddingPool
from vitkit.compute.inference import Precision
from vitkit.data.sources.dataset import Split
from vitkit.devices import pick_device
from vitkit.errors import ConfigError
from vitkit.model.build import Model
from vitkit.predict.answer_columns import AnswerColumns
from vitkit.predict.answer_parts import table_with_indices
from vitkit.predict.classifier import Classifier
from vitkit.predict.embedder import Embedder, EmbeddingColumns
from vitkit.predict.embedding_file import embedding_job
from vitkit.predict.image_stream import stream_outputs
from vitkit.predict.inputs import as_split
from vitkit.predict.journal import BlockT
from vitkit.predict.resumable_file import RowsJob
from vitkit.predict.rows import AnswerFormat
from vitkit.predict.stream import answers_job
from vitkit.weights.load import load

COLUMNS = ("path", "bytes")
Columns = Mapping[str, NDArray[Any]]


class Predictor:
    """A classifier of batches of images: adds error, label, probability, labels, probabilities and indices.

    source   a run folder, a weights file, hf:OWNER/NAME, "ti16" or a model
    top      classes for each image, the most probable first
    device   "auto", the GPU that Ray has given the actor, if any; "cpu", "cuda" …
    image    another size than the model's own
    labels   class names, in the order of the logits, for weights that carry none
    batch    images at a time; default: as many as suit the device
    threads  that decode images beside the model; default: as many as the actor has cores
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Model,
        top: int = 5,
        *,
        device: str = "auto",
        image: int | tuple[int, int] | None = None,
        labels: Sequence[str] | None = None,
        batch: int | None = None,
        threads: int | None = None,
    ):
        classifier = Classifier(source, device=device, image=image, labels=labels)
        if batch is not None:
            classifier.engine = replace(classifier.engine, batch=batch)
        self.form = AnswerFormat(
            labels=classifier.labels, top=min(top, len(classifier.labels)), multilabel=classifier.multilabel
        )
        self.job, self.threads = answers_job(classifier, top), _threads(threads)

    def __call__(self, batch: Columns) -> dict[str, NDArray[Any]]:
        split = images_of(batch)
        columns = AnswerColumns.join(compute_rows(self.job, split, self.threads)) if len(split) else None
        if columns is None:
            return dict(batch)
        table = table_with_indices([*split.keys], columns, self.form)
        return {**batch, **{name: _objects(table[name]) for name in table.column_names if name != "image"}}


class BatchEmbedder:
    """A model that turns batches of images into vectors: adds vector, nan where there is an error, and error.

    The options are those of Predictor; `pool`, `normalise` and `precision` are those of `vitkit embed`.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Model,
        *,
        pool: EmbeddingPool = "representation",
        normalise: bool = False,
        precision: Precision = "fp32",
        device: str = "auto",
        image: int | tuple[int, int] | None = None,
        batch: int | None = None,
        threads: int | None = None,
    ):
        model = load(source, image=image) if isinstance(source, str | os.PathLike) else source
        model = model.to(pick_device(device))
        embedder = Embedder(model, pool=pool, normalise=normalise, precision=precision, batch=batch)
        self.job, self.threads, self.width = embedding_job(embedder), _threads(threads), embedder.width

    def __call__(self, batch: Columns) -> dict[str, NDArray[Any]]:
        split = images_of(batch)
        if not len(split):
            return dict(batch)
        columns = EmbeddingColumns.join(compute_rows(self.job, split, self.threads))
        errors = np.array([columns.errors.get(row) for row in range(len(columns))], dtype=object)
        return {**batch, "vector": columns.vectors, "error": errors}


def images_of(batch: Columns) -> Split:
    """Return the images of a batch, named by the column "path" or given by "bytes"."""
    column = next((name for name in COLUMNS if name in batch), None)
    if column is None:
        raise ConfigError('a batch of images needs a column "path" or "bytes".', found=", ".join(batch) or "none")
    wrong = "" if column == "path" else b""  # a null is an image that cannot be read
    return as_split([wrong if value is None else value for value in batch[column].tolist()])


def compute_rows(job: RowsJob[BlockT], split: Split, threads: int) -> list[BlockT]:
    """Return the rows of some images, batch by batch, in this process."""
    return [job.format.block(outputs) for outputs in stream_outputs(job.task, split, threads=threads)]


def _objects(column: Any) -> NDArray[Any]:
    """Return a column of a table in the form that Ray Data makes a column of the same type of."""
    values = column.to_pylist()
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _threads(threads: int | None) -> int:
    if threads is not None:
        return threads
    import ray

    assigned = ray.get_runtime_context().get_assigned_resources() if ray.is_initialized() else {}
    return max(int(assigned.get("CPU", 1)) - 1, 0)
