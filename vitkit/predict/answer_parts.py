"""Predictions as the Parquet file of a part, from which the rows of any other format can be written.

Its columns are those of a Parquet file of predictions, and `indices`, the class numbers of `labels`: two classes may
have one name.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import ConfigError
from vitkit.predict.answer_columns import AnswerColumns
from vitkit.predict.parquet_part import OTHERWISE, names_and_errors, read_table, write_table
from vitkit.predict.rows import AnswerFormat, answer_table, arrow_lists, failed_rows, import_pyarrow

INDICES, PREDICTED = "indices", "predicted_indices"


def answer_part(names: Sequence[str], columns: AnswerColumns, form: AnswerFormat) -> bytes:
    """Return the Parquet file of some images."""
    return write_table(table_with_indices(names, columns, form))


def table_with_indices(names: Sequence[str], columns: AnswerColumns, form: AnswerFormat) -> Any:
    """Return rows as a pyarrow table with the class numbers."""
    arrow, _ = import_pyarrow(OTHERWISE)
    table, failed = answer_table(names, columns, form), failed_rows(columns)
    kept = arrow.array(columns.classes[~failed].reshape(-1), arrow.int32())
    table = table.append_column(INDICES, arrow_lists(kept, np.where(failed, 0, form.top), failed))
    if columns.predicted is None:
        return table
    chosen = [() if failed[row] else numbers for row, numbers in enumerate(columns.predicted)]
    flat = arrow.array([*chain.from_iterable(chosen)], arrow.int32())
    return table.append_column(PREDICTED, arrow_lists(flat, [len(numbers) for numbers in chosen], failed))


def read_answer_part(content: bytes, form: AnswerFormat) -> tuple[list[str], AnswerColumns]:
    """Return the names and the rows of a part, or raise a VitkitError for a damaged one."""
    table = read_table(content, (INDICES, "probabilities", *([PREDICTED] if form.multilabel else [])))
    names, errors = names_and_errors(table)
    kept = np.setdiff1d(np.arange(len(names)), [*errors])
    classes, probabilities = np.zeros((len(names), form.top), np.int32), np.zeros((len(names), form.top), np.float32)
    classes[kept] = _matrix(table[INDICES], len(kept), form.top)
    probabilities[kept] = _matrix(table["probabilities"], len(kept), form.top)
    predicted = None
    if form.multilabel:
        predicted = [row or [] for row in table[PREDICTED].to_pylist()]
    known = classes.min(initial=0) >= 0 and classes.max(initial=0) < len(form.labels)
    if not known or not all(0 <= number < len(form.labels) for row in predicted or () for number in row):
        raise ConfigError(f"a class is not one of {len(form.labels)}")
    return names, AnswerColumns(classes, probabilities, errors, predicted)


def _matrix(column: Any, rows: int, width: int) -> NDArray[Any]:
    """Return lists of one length as (rows, width); null lists are left out."""
    values: NDArray[Any] = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    if len(values) != rows * width:
        raise ConfigError(f"a part has {len(values)} numbers, not those of {rows} x {width}")
    return values.reshape(rows, width)
