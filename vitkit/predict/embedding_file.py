"""Vectors of many image files in one file: a Parquet table, or a NumPy matrix with a list of names beside it.

An image that could not be read is a row too: its vector is null in Parquet and nan in NumPy, and its error says why.

Shapes: n images, V width of the vector.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from vitkit.atomic import replacing
from vitkit.compute.embedding_model import EmbeddingPool
from vitkit.compute.inference import Precision
from vitkit.data.sources.dataset import Split
from vitkit.data.sources.image_paths import unlabelled_split
from vitkit.devices import pick_device
from vitkit.errors import ConfigError
from vitkit.job_shard import JobShard
from vitkit.model.build import Model
from vitkit.predict.embedder import Embedder, EmbeddingColumns, StoredEmbeddings
from vitkit.predict.embedding_parts import (
    embedding_part,
    embedding_schema,
    embedding_table,
    read_embedding_part,
)
from vitkit.predict.failures import Failures
from vitkit.predict.journal import Trait
from vitkit.predict.resumable_file import (
    BlockFormat,
    Blocks,
    RowsJob,
    engine_trait,
    model_trait,
    preprocessing_trait,
)
from vitkit.predict.rows import check_output_file, import_pyarrow
from vitkit.predict.sharded import JobOutput, write_rows
from vitkit.predict.stored_columns import FLOAT32, decode_column, decode_errors
from vitkit.progress import Progress, no_progress
from vitkit.storage.urls import is_url
from vitkit.stored_json import conform

FILE_NAME = "embeddings.parquet"  # of the one file in an output folder
GROUP = 1_000  # rows of a Parquet group, or a few more


class OldRow(TypedDict):
    """A row as journals of older versions hold it, a line for each image."""

    image: str
    error: str | None
    vector: str | None  # base64 of its float32 numbers


def embed_into(
    out: str | os.PathLike[str],
    embedder: Embedder,
    images: Sequence[str | os.PathLike[str]] | Split,
    *,
    workers: int = 0,
    overwrite: bool = False,
    source: str = "",
    shard: JobShard | None = None,
    progress: Progress = no_progress,
) -> tuple[int, Failures]:
    """Write the vectors of image files to .parquet, or to .npy with their names in .images.jsonl beside it.

    After an interruption, the same call continues after the last batch. Return how many rows were complete already, and
    the images that could not be read. `source` is where the model came from, for messages. `out` and `shard` are those
    of `predict_into`.
    """
    check_vectors_path(out)
    job = embedding_job(embedder, source=source)
    output = JobOutput.of(out, FILE_NAME)
    return write_rows(
        output, job, unlabelled_split(images), shard, workers=workers, overwrite=overwrite, progress=progress
    )


def embedding_job(embedder: Embedder, *, source: str = "") -> RowsJob[EmbeddingColumns]:
    """Return the job of computing the vectors of images as rows; `source` is where the model came from."""
    return RowsJob(
        task=embedder.task,
        format=BlockFormat(
            block=embedder.columns,
            read=lambda stored: read_embeddings(stored, embedder.width),
            write=lambda path, blocks, images: WRITERS[path.suffix.lower()](path, blocks, images, embedder.width),
            sidecars=sidecar_files,
            part=embedding_part,
            read_part=lambda content: read_embedding_part(content, embedder.width),
        ),
        traits=_traits(embedder, source),
    )


def make_embedding_job(
    model: Model, device: str, *, pool: EmbeddingPool, normalise: bool, precision: Precision, source: str
) -> RowsJob[EmbeddingColumns]:
    """Return the job of a model on a device, as a worker of another machine makes it."""
    model = model.to(pick_device(device))
    return embedding_job(Embedder(model, pool=pool, normalise=normalise, precision=precision), source=source)


def check_vectors_path(out: str | os.PathLike[str]) -> None:
    """Raise a ConfigError for a path or a URL that the vectors could not be written to."""
    suffix = check_output_file(out, WRITERS)
    for path in () if is_url(out) else sidecar_files(Path(out)):
        if os.path.exists(path) and not os.path.isfile(path):
            raise ConfigError(f"--out {out}: {path}, for the names of its images, is not a regular file")
    if suffix == ".parquet":
        import_pyarrow("--out FILE.npy")


def sidecar_files(out: Path) -> list[Path]:
    """Return the files that belong to the output: for .npy, the names of its rows."""
    return [out.with_suffix(".images.jsonl")] if out.suffix.lower() == ".npy" else []


def _traits(embedder: Embedder, source: str) -> dict[str, Trait]:
    """Return what rows depend on besides the images; the logits are not part of it."""
    return {
        "model": model_trait(embedder.model, embedder.transform, source),
        "preprocessing": preprocessing_trait(embedder.transform),
        "engine": engine_trait(embedder.engine),
        "--pool": Trait(embedder.pool, embedder.pool),
        "--normalise": Trait(int(embedder.normalise), "yes" if embedder.normalise else "no"),
    }


def read_embeddings(stored: Mapping[str, Any], width: int) -> EmbeddingColumns:
    """Return rows of a journal, or raise a VitkitError for damaged ones; older versions wrote a line for each image."""
    if "vector" in stored:
        return _old_row(conform(stored, OldRow, "a row"), width)
    block: StoredEmbeddings = conform(stored, StoredEmbeddings, "a row")
    if block["images"] < 1:
        raise ConfigError("a block of a journal has no rows")
    vectors = decode_column(block["vectors"], (block["images"], width), FLOAT32)
    errors = decode_errors(block["errors"], len(vectors))
    if {*np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist()} != {*errors}:
        raise ConfigError("a row has either a vector or an error")
    return EmbeddingColumns(vectors, errors)


def _old_row(row: OldRow, width: int) -> EmbeddingColumns:
    error, vector = row["error"], row["vector"]
    if (error is None) != (vector is not None):
        raise ConfigError("a row has either a vector or an error")
    missing = np.full((1, width), np.nan, FLOAT32)
    vectors = missing if vector is None else decode_column(vector, (1, width), FLOAT32)
    return EmbeddingColumns(vectors, {} if error is None else {0: error})


def _write_parquet(path: Path, blocks: Blocks[EmbeddingColumns], images: int, width: int) -> None:
    _, parquet = import_pyarrow("--out FILE.npy")
    with (
        replacing(path, ConfigError) as temporary,
        parquet.ParquetWriter(temporary, embedding_schema(width)) as writer,
    ):
        for names, columns in _groups(blocks):
            writer.write_table(embedding_table(names, columns))


def _groups(blocks: Blocks[EmbeddingColumns]) -> Iterator[tuple[list[str], EmbeddingColumns]]:
    """Yield names and rows, at least GROUP rows at a time."""
    names: list[str] = []
    waiting: list[EmbeddingColumns] = []
    for new_names, block in blocks():
        names += new_names
        waiting.append(block)
        if len(names) >= GROUP:
            yield names, EmbeddingColumns.join(waiting)
            names, waiting = [], []
    if names:
        yield names, EmbeddingColumns.join(waiting)


def _write_numpy(path: Path, blocks: Blocks[EmbeddingColumns], images: int, width: int) -> None:
    """Write the names first: where there is a matrix, its names are there as well."""
    [sidecar] = sidecar_files(path)
    with replacing(sidecar, ConfigError) as temporary, temporary.open("w", encoding="utf-8") as file:
        for names, block in blocks():
            file.writelines(
                json.dumps({"image": name, "error": block.errors.get(row)}) + "\n" for row, name in enumerate(names)
            )
    header = {"descr": FLOAT32.str, "fortran_order": False, "shape": (images, width)}
    with replacing(path, ConfigError) as temporary, temporary.open("wb") as matrix:
        np.lib.format.write_array_header_1_0(matrix, header)
        for _, block in blocks():
            matrix.write(block.vectors.astype(FLOAT32, copy=False).tobytes())


WRITERS: dict[str, Callable[[Path, Blocks[EmbeddingColumns], int, int], None]] = {
    ".parquet": _write_parquet,
    ".npy": _write_numpy,
}
