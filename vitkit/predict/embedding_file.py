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
from numpy.typing import NDArray

from vitkit.atomic import replacing
from vitkit.errors import ConfigError
from vitkit.predict.embedder import Embedder, EmbeddingColumns, StoredEmbeddings
from vitkit.predict.failures import Failures
from vitkit.predict.journal import Trait
from vitkit.predict.output_file import OutputFile
from vitkit.predict.resumable_file import (
    BlockFormat,
    Blocks,
    engine_trait,
    images_trait,
    model_trait,
    preprocessing_trait,
    write_resumable,
)
from vitkit.predict.rows import check_output_file, import_pyarrow
from vitkit.predict.stored_columns import FLOAT32, decode_column, decode_errors
from vitkit.progress import Progress, no_progress
from vitkit.storage.urls import is_url
from vitkit.stored_json import conform
from vitkit.text import valid_utf8

GROUP = 1_000  # rows of a Parquet group, or a few more


class OldRow(TypedDict):
    """A row as journals of older versions hold it, a line for each image."""

    image: str
    error: str | None
    vector: str | None  # base64 of its float32 numbers


def embed_into(
    out: str | os.PathLike[str],
    embedder: Embedder,
    paths: Sequence[str | os.PathLike[str]],
    *,
    workers: int = 0,
    overwrite: bool = False,
    source: str = "",
    progress: Progress = no_progress,
) -> tuple[int, Failures]:
    """Write the vectors of image files to .parquet, or to .npy with their names in .images.jsonl beside it.

    After an interruption, the same call continues after the last batch. Return how many rows were complete already, and
    the images that could not be read. `source` is where the model came from, for messages.
    """
    check_vectors_path(out)
    output = OutputFile.of(out)
    write = WRITERS[output.path.suffix.lower()]
    return write_resumable(
        output,
        embedder.task,
        paths,
        BlockFormat(
            block=embedder.columns,
            read=lambda stored: read_embeddings(stored, embedder.width),
            write=lambda path, blocks: write(path, blocks, len(paths), embedder.width),
            sidecars=sidecar_files,
        ),
        _traits(embedder, paths, source),
        workers=workers,
        overwrite=overwrite,
        progress=progress,
    )


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


def _traits(embedder: Embedder, paths: Sequence[str | os.PathLike[str]], source: str) -> dict[str, Trait]:
    """Return what rows depend on; the logits are not part of it."""
    return {
        "model": model_trait(embedder.model, embedder.transform, source),
        "preprocessing": preprocessing_trait(embedder.transform),
        "engine": engine_trait(embedder.engine),
        "--pool": Trait(embedder.pool, embedder.pool),
        "--normalise": Trait(int(embedder.normalise), "yes" if embedder.normalise else "no"),
        "images": images_trait(paths),
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
    arrow, parquet = import_pyarrow("--out FILE.npy")
    vector = arrow.list_(arrow.float32(), width)
    schema = arrow.schema([("image", arrow.string()), ("vector", vector), ("error", arrow.string())])
    with replacing(path, ConfigError) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for names, vectors, errors in _groups(blocks):
            missing = np.zeros(len(names), bool)
            missing[list(errors)] = True
            columns = [
                arrow.array(map(valid_utf8, names), arrow.string()),
                arrow.FixedSizeListArray.from_arrays(
                    arrow.array(vectors.reshape(-1)), type=vector, mask=arrow.array(missing)
                ),
                arrow.array([errors.get(row) for row in range(len(names))], arrow.string()),
            ]
            writer.write_table(arrow.Table.from_arrays(columns, schema=schema))


def _groups(blocks: Blocks[EmbeddingColumns]) -> Iterator[tuple[list[str], NDArray[np.float32], dict[int, str]]]:
    """Yield names, vectors and errors, at least GROUP rows at a time."""
    names: list[str] = []
    vectors: list[NDArray[np.float32]] = []
    errors: dict[int, str] = {}
    for new_names, block in blocks():
        errors |= {len(names) + row: error for row, error in block.errors.items()}
        names += new_names
        vectors.append(block.vectors)
        if len(names) >= GROUP:
            yield names, np.concatenate(vectors), errors
            names, vectors, errors = [], [], {}
    if names:
        yield names, np.concatenate(vectors), errors


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
