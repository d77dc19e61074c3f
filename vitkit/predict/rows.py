"""Predictions as rows of a file or of a program's output: CSV, JSON Lines, Parquet. Rows are written in blocks.

Shapes: n images of a block, k = top the most likely classes of each.
"""

import csv
import io
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.atomic import replacing
from vitkit.errors import ConfigError
from vitkit.predict.answer_columns import AnswerColumns
from vitkit.storage.remote import check_writable
from vitkit.storage.urls import is_url, last_part, redacted
from vitkit.text import valid_utf8

NamedAnswers = tuple[Sequence[str], AnswerColumns]  # the names of the images, and their rows

GROUP = 10_000  # rows of a Parquet group, or a few more
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    """The form of rows: the class names, how many of them a row has, and what CSV looks like."""

    labels: Sequence[str]
    top: int  # at most as many as there are labels
    multilabel: bool = False  # rows have the classes from their thresholds on as well
    csv_raw: bool = False  # CSV without the guard against formulas


def write_answers(path: Path, blocks: Iterable[NamedAnswers], form: AnswerFormat) -> None:
    """Write a file completely or not at all, in the format of its suffix."""
    write = WRITERS[path.suffix.lower()]
    with replacing(path, ConfigError) as temporary:
        write(temporary, blocks, form)


def check_output_path(out: str | os.PathLike[str]) -> None:
    """Raise a ConfigError for a path or a URL that rows could not be written to."""
    if check_output_file(out, WRITERS) == ".parquet" or is_folder(out):
        import_pyarrow("--out FILE.csv")


def check_output_file(out: str | os.PathLike[str], suffixes: Collection[str]) -> str:
    """Return the suffix of a name under which a file or a folder can be written, or raise a ConfigError."""
    path = Path(last_part(os.fspath(out)) if is_url(out) else out)
    if path.suffix.lower() not in suffixes and not is_folder(out):
        raise ConfigError(
            f"--out {redacted(os.fspath(out))}: the name must end in {', '.join(suffixes)}; a folder's name has no "
            "such ending"
        )
    if is_url(out):
        check_writable(os.fspath(out))
        return path.suffix.lower()
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise ConfigError(f"--out {path}: this is a pipe or a device, not a regular file")
    if not path.parent.is_dir():
        raise ConfigError(f"--out {path}: there is no folder {path.parent}")
    return path.suffix.lower()


def is_folder(out: str | os.PathLike[str]) -> bool:
    """Return whether --out names a folder: one that exists, or a name without an ending."""
    if is_url(out):
        return os.fspath(out).endswith("/") or not Path(last_part(os.fspath(out))).suffix
    return os.path.isdir(out) or not Path(out).suffix  # os.path: not stopped by a name that is too long


def csv_texts(blocks: Iterable[NamedAnswers], form: AnswerFormat) -> Iterator[str]:
    """Yield a header, image, error, label_1, probability_1, label_2, …, then the lines of each block.

    Rows of a multi-label model have the column `predicted`: the classes from their thresholds on, separated by |.
    Unless `csv_raw`, a name that a spreadsheet would compute as a formula has a single quote before it.
    """
    guard = str if form.csv_raw else without_formula
    header = [
        "image",
        "error",
        *["predicted"] * form.multilabel,
        *(f"{name}_{rank}" for rank in range(1, form.top + 1) for name in ("label", "probability")),
    ]
    yield _csv_text([header])
    labels = np.array([guard(label) for label in form.labels], dtype=object)
    for names, columns in blocks:
        fields: list[Sequence[Any]] = [
            [guard(name) for name in names],
            [guard(columns.errors.get(row, "")) for row in range(len(columns))]
            if columns.errors
            else [""] * len(names),
        ]
        if columns.predicted is not None:
            fields.append([guard("|".join(form.labels[number] for number in row)) for row in columns.predicted])
        first = len(fields)
        for rank in range(form.top):
            fields += [labels[columns.classes[:, rank]].tolist(), columns.probabilities[:, rank].tolist()]
        rows = [*zip(*fields, strict=True)]
        for row in columns.errors:
            # as many fields in each row: strict parsers, Arrow's among them, refuse the whole file otherwise
            rows[row] = (*rows[row][:2], *[""] * (first - 2 + 2 * form.top))
        yield _csv_text(rows)


def _csv_text(rows: Sequence[Sequence[Any]]) -> str:
    """Return lines that end in a line feed.

    Until Python 3.13, the writer quotes no other line breaks than its own: a carriage return needs a writer that ends
    lines in both characters, and its ends are then replaced one by one.
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    if "\r" not in text.getvalue():
        return text.getvalue()
    lines = []
    for row in rows:
        line = io.StringIO(newline="")
        csv.writer(line, lineterminator="\r\n").writerow(row)
        lines.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


def without_formula(cell: str) -> str:
    """Put a single quote before a cell that Excel or LibreOffice would compute, as OWASP advises: '=1+1."""
    return f"'{cell}" if cell.startswith(FORMULA_STARTS) else cell


def json_texts(blocks: Iterable[NamedAnswers], form: AnswerFormat) -> Iterator[str]:
    """Yield the lines of each block, an object for each image, as `Prediction.record` returns it."""
    labels = [json.dumps(label) for label in form.labels]
    for names, columns in blocks:
        lines = []
        numbers = zip(columns.classes.tolist(), columns.probabilities.tolist(), strict=True)
        for row, (name, (classes, probabilities)) in enumerate(zip(names, numbers, strict=True)):
            error = columns.errors.get(row)
            if error is None:
                answers = ", ".join(
                    f'{{"label": {labels[number]}, "probability": {probability!r}, "index": {number}}}'
                    for number, probability in zip(classes, probabilities, strict=True)
                )
                best = f'"error": null, "label": {labels[classes[0]]}, "probability": {probabilities[0]!r}'
            else:
                answers, best = "", f'"error": {json.dumps(error)}, "label": null, "probability": null'
            predicted = ""
            if columns.predicted is not None:
                chosen = () if error is not None else columns.predicted[row]
                predicted = f', "predicted": [{", ".join(labels[number] for number in chosen)}]'
            lines.append(f'{{"image": {json.dumps(name)}, {best}, "answers": [{answers}]{predicted}}}\n')
        yield "".join(lines)


def _write_csv(path: Path, blocks: Iterable[NamedAnswers], form: AnswerFormat) -> None:
    with path.open("w", encoding="utf-8", newline="", errors="surrogateescape") as file:  # names need not be text
        file.writelines(csv_texts(blocks, form))


def _write_jsonl(path: Path, blocks: Iterable[NamedAnswers], form: AnswerFormat) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json_texts(blocks, form))


def _write_parquet(path: Path, blocks: Iterable[NamedAnswers], form: AnswerFormat) -> None:
    _, parquet = import_pyarrow("--out FILE.csv")
    with parquet.ParquetWriter(path, answer_schema(form)) as writer:
        for names, columns in _groups(blocks):
            writer.write_table(answer_table(names, columns, form))


def answer_schema(form: AnswerFormat) -> Any:
    """Return the columns of a Parquet file: the most likely class, and lists of the first `top`.

    Rows of a multi-label model have the list `predicted` as well.
    """
    arrow, _ = import_pyarrow("--out FILE.csv")
    texts, numbers = arrow.list_(arrow.string()), arrow.list_(arrow.float32())
    return arrow.schema(
        [
            ("image", arrow.string()),
            ("error", arrow.string()),
            ("label", arrow.string()),
            ("probability", arrow.float32()),
            ("labels", texts),
            ("probabilities", numbers),
            *([("predicted", texts)] if form.multilabel else []),
        ]
    )


def answer_table(names: Sequence[str], columns: AnswerColumns, form: AnswerFormat) -> Any:
    """Return rows as a pyarrow table; unreadable images have nulls."""
    arrow, _ = import_pyarrow("--out FILE.csv")
    labels = arrow.array(map(valid_utf8, form.labels), arrow.string())
    failed = failed_rows(columns)
    answers = np.where(failed, 0, form.top)  # of each row
    kept_classes = arrow.array(columns.classes[~failed].reshape(-1))
    arrays = [
        arrow.array(map(valid_utf8, names), arrow.string()),
        arrow.array([columns.errors.get(row) for row in range(len(columns))], arrow.string()),
        labels.take(arrow.array(columns.classes[:, 0], mask=failed)),
        arrow.array(columns.probabilities[:, 0], arrow.float32(), mask=failed),
        arrow_lists(labels.take(kept_classes), answers, failed),
        arrow_lists(arrow.array(columns.probabilities[~failed].reshape(-1)), answers, failed),
    ]
    if columns.predicted is not None:
        chosen = [() if failed[row] else numbers for row, numbers in enumerate(columns.predicted)]
        flat = arrow.array([*chain.from_iterable(chosen)], arrow.int32())
        arrays.append(arrow_lists(labels.take(flat), [len(numbers) for numbers in chosen], failed))
    return arrow.Table.from_arrays(arrays, schema=answer_schema(form))


def failed_rows(columns: AnswerColumns) -> NDArray[np.bool_]:
    """Return which rows have an error: (n,)."""
    failed = np.zeros(len(columns), bool)
    failed[list(columns.errors)] = True
    return failed


def arrow_lists(values: Any, lengths: Any, failed: NDArray[np.bool_]) -> Any:
    """Return a column of lists of those lengths, null where a row has failed."""
    arrow, _ = import_pyarrow("--out FILE.csv")
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return arrow.ListArray.from_arrays(arrow.array(offsets), values, mask=arrow.array(failed))


def _groups(blocks: Iterable[NamedAnswers]) -> Iterator[NamedAnswers]:
    """Join blocks to at least as many rows as a Parquet group has."""
    waiting: list[NamedAnswers] = []
    for block in blocks:
        waiting.append(block)
        if sum(len(columns) for _, columns in waiting) >= GROUP:
            yield [name for names, _ in waiting for name in names], AnswerColumns.join([one for _, one in waiting])
            waiting.clear()
    if waiting:
        yield [name for names, _ in waiting for name in names], AnswerColumns.join([one for _, one in waiting])


def import_pyarrow(otherwise: str) -> tuple[Any, Any]:
    """Return pyarrow and its Parquet module; where they are missing, the error suggests what else to do."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("Parquet needs pyarrow", try_=f'pip install "vitkit[formats]", or {otherwise}') from None
    return pyarrow, pyarrow.parquet


WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}
