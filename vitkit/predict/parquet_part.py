"""The Parquet file of a part: rows in memory as bytes and back, with the names of their images and the errors."""

from typing import Any

from vitkit.errors import ConfigError
from vitkit.predict.rows import import_pyarrow

OTHERWISE = "--out FILE in one process, without --shard and --engine"


def write_table(table: Any) -> bytes:
    """Return a pyarrow table as the bytes of a Parquet file."""
    arrow, parquet = import_pyarrow(OTHERWISE)
    stream = arrow.BufferOutputStream()
    parquet.write_table(table, stream)
    content: bytes = stream.getvalue().to_pybytes()
    return content


def read_table(content: bytes, columns: tuple[str, ...]) -> Any:
    """Return a Parquet file as a pyarrow table, or raise a ConfigError for one that is damaged or lacks columns."""
    arrow, parquet = import_pyarrow(OTHERWISE)
    try:
        table = parquet.read_table(arrow.BufferReader(content)).combine_chunks()
    except (arrow.ArrowException, OSError) as error:
        raise ConfigError(f"a part is damaged: {error}") from error
    if missing := [name for name in ("image", "error", *columns) if name not in table.column_names]:
        raise ConfigError(f"a part lacks the column {missing[0]}")
    return table


def names_and_errors(table: Any) -> tuple[list[str], dict[int, str]]:
    """Return the names of the images, and row → why there is no result."""
    errors = enumerate(table["error"].to_pylist())
    return table["image"].to_pylist(), {row: error for row, error in errors if error is not None}
