"""Vectors as a Parquet table: of the one file, and of a part.

Shapes: n images, V width of the vector.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitkit.errors import ConfigError
from vitkit.predict.embedder import EmbeddingColumns
from vitkit.predict.parquet_part import names_and_errors, read_table, write_table
from vitkit.predict.rows import import_pyarrow
from vitkit.text import valid_utf8


def embedding_schema(width: int) -> Any:
    """Return the columns: the name of the image, its vector, and why there is none."""
    arrow, _ = import_pyarrow("--out FILE.npy")
    vector = arrow.list_(arrow.float32(), width)
    return arrow.schema([("image", arrow.string()), ("vector", vector), ("error", arrow.string())])


def embedding_table(names: Sequence[str], columns: EmbeddingColumns) -> Any:
    """Return rows as a pyarrow table; an unreadable image has a null for a vector."""
    arrow, _ = import_pyarrow("--out FILE.npy")
    schema = embedding_schema(columns.vectors.shape[1])
    missing = np.zeros(len(columns), bool)
    missing[list(columns.errors)] = True
    arrays = [
        arrow.array(map(valid_utf8, names), arrow.string()),
        arrow.FixedSizeListArray.from_arrays(
            arrow.array(columns.vectors.reshape(-1)), type=schema.field("vector").type, mask=arrow.array(missing)
        ),
        arrow.array([columns.errors.get(row) for row in range(len(columns))], arrow.string()),
    ]
    return arrow.Table.from_arrays(arrays, schema=schema)


def embedding_part(names: Sequence[str], blocks: Sequence[EmbeddingColumns]) -> bytes:
    """Return the Parquet file of some images."""
    return write_table(embedding_table(names, EmbeddingColumns.join(blocks)))


def read_embedding_part(content: bytes, width: int) -> tuple[list[str], EmbeddingColumns]:
    """Return the names and the rows of a part, or raise a VitkitError for a damaged one."""
    table = read_table(content, ("vector",))
    names, errors = names_and_errors(table)
    kept = np.setdiff1d(np.arange(len(names)), [*errors])
    values = table["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    vectors = np.full((len(names), width), np.nan, np.float32)
    if values.dtype != np.float32 or len(values) != len(kept) * width:
        raise ConfigError(f"a part has {len(values)} numbers, not those of {len(kept)} x {width}")
    vectors[kept] = values.reshape(len(kept), width)
    return names, EmbeddingColumns(vectors, errors)
