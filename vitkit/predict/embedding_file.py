"""Vectors of many image files in one file: a Parquet table, or a NumPy matrix with a list of names beside it.

An image that could not be read is a row too: its vector is null in Parquet and nan in NumPy, and its error says why.

Shapes: n images, V width of the vector.
"""

import base64
import binascii
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from vitkit.atomic import replacing
from vitkit.errors import ConfigError
from vitkit.predict.embedder import Embedder, Embedding
from vitkit.predict.failures import Failures
from vitkit.predict.journal import Trait
from vitkit.predict.resumable_file import (
    RowFormat,
    Rows,
    engine_trait,
    images_trait,
    model_trait,
    preprocessing_trait,
    write_resumable,
)
from vitkit.predict.rows import check_output_file, import_pyarrow
from vitkit.progress import Progress, no_progress
from vitkit.text import valid_utf8

GROUP = 1_000  # rows that are written at a time
FLOAT32 = np.dtype("<f4")


class StoredEmbedding(TypedDict):
    """A row as a journal holds it."""

    image: str
    error: str | None
    vector: str | None  # base64 of its float32 numbers, exact and far faster than their decimals


def embed_into(
    out: Path,
    embedder: Embedder,
    paths: Sequence[Path],
    *,
    workers: int = 0,
    overwrite: bool = False,
    source: str = "",
    progress: Progress = no_progress,
) -> tuple[int, Failures]:
    """Write the vectors of image files to .parquet, or to .npy with their names in .images.jsonl beside it.

    After an interruption, the same call continues after the last row. Return how many rows were complete already, and
    the images that could not be read. `source` is where the model came from, for messages.
    """
    check_vectors_path(out)
    write = WRITERS[out.suffix.lower()]
    return write_resumable(
        out,
        embedder.task,
        paths,
        RowFormat(
            record=_record,
            row=StoredEmbedding,
            check=lambda row: _check_row(row, embedder.width),
            write=lambda path, rows: write(path, rows, len(paths), embedder.width),
            sidecars=sidecar_files,
        ),
        _traits(embedder, paths, source),
        workers=workers,
        overwrite=overwrite,
        progress=progress,
    )


def check_vectors_path(out: Path) -> None:
    """Raise a ConfigError for a path that the vectors could not be written to."""
    check_output_file(out, WRITERS)
    for path in sidecar_files(out):
        if os.path.exists(path) and not os.path.isfile(path):
            raise ConfigError(f"--out {out}: {path}, for the names of its images, is not a regular file")
    if out.suffix.lower() == ".parquet":
        import_pyarrow("--out FILE.npy")


def sidecar_files(out: Path) -> list[Path]:
    """Return the files that belong to the output: for .npy, the names of its rows."""
    return [out.with_suffix(".images.jsonl")] if out.suffix.lower() == ".npy" else []


def _traits(embedder: Embedder, paths: Sequence[Path], source: str) -> dict[str, Trait]:
    """Return what rows depend on; the logits are not part of it."""
    return {
        "model": model_trait(embedder.model, embedder.transform, source),
        "preprocessing": preprocessing_trait(embedder.transform),
        "engine": engine_trait(embedder.engine),
        "--pool": Trait(embedder.pool, embedder.pool),
        "--normalise": Trait(int(embedder.normalise), "yes" if embedder.normalise else "no"),
        "images": images_trait(paths),
    }


def _record(embedding: Embedding) -> Mapping[str, Any]:
    vector = embedding.vector
    text = None if vector is None else base64.b64encode(vector.astype(FLOAT32).tobytes()).decode()
    return {"image": embedding.name, "error": embedding.error, "vector": text}


def _check_row(row: Mapping[str, Any], width: int) -> None:
    """Raise a ConfigError for a row that a damaged disk has changed."""
    if (row["error"] is None) != (row["vector"] is not None):
        raise ConfigError("a row has either a vector or an error")
    if row["vector"] is not None:
        try:
            content = base64.b64decode(row["vector"], validate=True)
        except binascii.Error as error:
            raise ConfigError(f"a vector is not base64: {error}") from error
        if len(content) != width * FLOAT32.itemsize:
            raise ConfigError(f"a vector has {len(content)} bytes, not those of {width} numbers")


def _vectors(rows: Iterable[Mapping[str, Any]], width: int) -> NDArray[np.float32]:
    """Return (n, V), nan where a row has no vector."""
    missing = np.full(width, np.nan, FLOAT32).tobytes()
    contents = [missing if row["vector"] is None else base64.b64decode(row["vector"]) for row in rows]
    return np.frombuffer(b"".join(contents), FLOAT32).reshape(-1, width)


def _groups(rows: Rows) -> Iterator[list[dict[str, Any]]]:
    remaining = rows()
    while group := list(islice(remaining, GROUP)):
        yield group


def _write_parquet(path: Path, rows: Rows, images: int, width: int) -> None:
    arrow, parquet = import_pyarrow("--out FILE.npy")
    vector = arrow.list_(arrow.float32(), width)
    schema = arrow.schema([("image", arrow.string()), ("vector", vector), ("error", arrow.string())])
    with replacing(path, ConfigError) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for group in _groups(rows):
            missing = np.array([row["vector"] is None for row in group])
            numbers = arrow.array(_vectors(group, width).reshape(-1))
            columns = [
                arrow.array([valid_utf8(row["image"]) for row in group], arrow.string()),
                arrow.FixedSizeListArray.from_arrays(numbers, type=vector, mask=arrow.array(missing)),
                arrow.array([row["error"] for row in group], arrow.string()),
            ]
            writer.write_table(arrow.Table.from_arrays(columns, schema=schema))


def _write_numpy(path: Path, rows: Rows, images: int, width: int) -> None:
    """Write the names first: where there is a matrix, its names are there as well."""
    [names] = sidecar_files(path)
    with replacing(names, ConfigError) as temporary, temporary.open("w", encoding="utf-8") as file:
        for row in rows():
            file.write(json.dumps({"image": row["image"], "error": row["error"]}) + "\n")
    header = {"descr": FLOAT32.str, "fortran_order": False, "shape": (images, width)}
    with replacing(path, ConfigError) as temporary, temporary.open("wb") as matrix:
        np.lib.format.write_array_header_1_0(matrix, header)
        for group in _groups(rows):
            matrix.write(_vectors(group, width).tobytes())


WRITERS: dict[str, Callable[[Path, Rows, int, int], None]] = {".parquet": _write_parquet, ".npy": _write_numpy}
