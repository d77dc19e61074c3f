"""The verbs predict and embed on a Ray cluster: connect, load the model once, and send it to the actors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from vitkit import messages
from vitkit.compute.embedding_model import EmbeddingPool
from vitkit.compute.inference import Precision
from vitkit.errors import ConfigError
from vitkit.evaluate.matching import read_labels
from vitkit.model.build import Model
from vitkit.model.segmenter import Segmenter
from vitkit.predict import embedding_file, stream
from vitkit.predict.answer_columns import AnswerColumns
from vitkit.predict.embedder import EmbeddingColumns
from vitkit.predict.failures import Failures
from vitkit.predict.inputs import preprocess
from vitkit.predict.journal import BlockT
from vitkit.predict.ray_cluster import ray_cluster
from vitkit.predict.ray_engine import MakeJob, write_on_ray
from vitkit.predict.sharded import JobOutput, parts_kept
from vitkit.progress import Progress
from vitkit.weights.load import load


def predict_on_ray(
    out: str,
    run: str,
    sources: Sequence[str],
    *,
    image: tuple[int, int] | None,
    preprocessing: Callable[[Model], None],
    labels: Path | None,
    top: int,
    csv_raw: bool,
    overwrite: bool,
    progress: Progress,
) -> tuple[int, Failures]:
    """Predict the classes of all images; return how many rows were complete already, and the images that failed."""

    def make(model: Model) -> MakeJob[AnswerColumns]:
        if isinstance(model, Segmenter):
            raise ConfigError(
                "--engine ray writes the classes of images, and this model gives every pixel a class",
                try_="the same command without --engine ray, with --out FOLDER or --out masks.json",
            )
        names = None if labels is None else read_labels(labels, model.config.classes)
        return partial(stream.make_answers_job, top=top, labels=names, source=run, csv_raw=csv_raw)

    output = JobOutput.of(out, stream.FILE_NAME)
    return _write(output, run, sources, image, preprocessing, make, overwrite, progress)


def embed_on_ray(
    out: str,
    run: str,
    sources: Sequence[str],
    *,
    image: tuple[int, int] | None,
    preprocessing: Callable[[Model], None],
    pool: EmbeddingPool,
    normalise: bool,
    precision: Precision,
    overwrite: bool,
    progress: Progress,
) -> tuple[int, Failures]:
    """Compute the vectors of all images; return how many rows were complete already, and the images that failed."""

    def make(model: Model) -> MakeJob[EmbeddingColumns]:
        return partial(
            embedding_file.make_embedding_job, pool=pool, normalise=normalise, precision=precision, source=run
        )

    output = JobOutput.of(out, embedding_file.FILE_NAME)
    return _write(output, run, sources, image, preprocessing, make, overwrite, progress)


def _write(
    output: JobOutput,
    run: str,
    sources: Sequence[str],
    image: tuple[int, int] | None,
    preprocessing: Callable[[Model], None],
    make: Callable[[Model], MakeJob[BlockT]],
    overwrite: bool,
    progress: Progress,
) -> tuple[int, Failures]:
    with ray_cluster() as cluster:
        messages.say("cluster", cluster.description, file=sys.stderr)
        model = load(run, image=image)
        preprocessing(model)
        messages.say("input", preprocess(model).transform.description, file=sys.stderr)
        with parts_kept(output):
            return write_on_ray(output, make(model), model, sources, cluster, overwrite=overwrite, progress=progress)
