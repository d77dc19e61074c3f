"""Predictions as rows of a file or of a program's output: CSV, JSON Lines, Parquet."""

import csv
import io
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from vitkit.atomic import replacing
from vitkit.errors import ConfigError
from vitkit.text import valid_utf8

Row = Mapping[str, Any]  # Prediction.record

GROUP = 10_000  # rows of a Parquet group
LINE_END = "\r\n"  # while a line is made: until Python 3.13, the writer quotes no other line breaks than its own
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_rows(path: Path, rows: Iterable[Row], top: int, *, csv_raw: bool = False) -> None:
    """Write a file completely or not at all, in the format of its suffix; csv_raw writes CSV without its guard."""
    write = WRITERS[path.suffix.lower()]
    with replacing(path, ConfigError) as temporary:
        write(temporary, rows, top, csv_raw)


def check_output_path(path: Path) -> None:
    """Raise a ConfigError for a path that rows could not be written to."""
    check_output_file(path, WRITERS)
    if path.suffix.lower() == ".parquet":
        import_pyarrow("--out FILE.csv")


def check_output_file(path: Path, suffixes: Collection[str]) -> None:
    """Raise a ConfigError unless a file of that name, with one of the suffixes, could be written."""
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"--out {path}: the name must end in {', '.join(suffixes)}")
    if os.path.isdir(path):  # unlike pathlib's, not stopped by a name that is too long
        raise ConfigError(f"--out {path}: this is a folder")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ConfigError(f"--out {path}: this is a pipe or a device, not a regular file")
    if not path.parent.is_dir():
        raise ConfigError(f"--out {path}: there is no folder {path.parent}")


def csv_lines(rows: Iterable[Row], top: int, *, raw: bool = False) -> Iterator[str]:
    """Yield a header, image, error, label_1, probability_1, label_2, …, and a line for each row.

    Rows of a multi-label model have the column `predicted`: the classes from their thresholds on, separated by |.
    Unless `raw`, a name that a spreadsheet would compute as a formula has a single quote before it.
    """
    guard = str if raw else without_formula
    rows, multilabel = _are_multilabel(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=LINE_END)
    writer.writerow(
        [
            "image",
            "error",
            *["predicted"] * multilabel,
            *(f"{name}_{rank}" for rank in range(1, top + 1) for name in ("label", "probability")),
        ]
    )
    yield text.getvalue().removesuffix(LINE_END) + "\n"
    for row in rows:
        text.seek(0)
        text.truncate()
        values = [value for answer in row["answers"] for value in (guard(answer["label"]), answer["probability"])]
        # as many fields in each row: strict parsers, Arrow's among them, refuse the whole file otherwise
        labels = [guard("|".join(row.get("predicted", ())))] if multilabel else []
        names = [guard(row["image"]), guard(row["error"] or ""), *labels]
        writer.writerow([*names, *values, *[""] * (2 * top - len(values))])
        yield text.getvalue().removesuffix(LINE_END) + "\n"


def without_formula(cell: str) -> str:
    """Put a single quote before a cell that Excel or LibreOffice would compute, as OWASP advises: '=1+1."""
    return f"'{cell}" if cell.startswith(FORMULA_STARTS) else cell


def _are_multilabel(rows: Iterable[Row]) -> tuple[Iterator[Row], bool]:
    """Return the rows, and whether the first of them is of a multi-label model."""
    remaining = iter(rows)
    first = list(islice(remaining, 1))
    return chain(first, remaining), any("predicted" in row for row in first)


def _write_csv(path: Path, rows: Iterable[Row], top: int, csv_raw: bool) -> None:
    with path.open("w", encoding="utf-8", newline="", errors="surrogateescape") as file:  # names need not be text
        file.writelines(csv_lines(rows, top, raw=csv_raw))


def _write_jsonl(path: Path, rows: Iterable[Row], top: int, csv_raw: bool) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _write_parquet(path: Path, rows: Iterable[Row], top: int, csv_raw: bool) -> None:
    """Write columns for the most likely class and lists for the first `top`; unreadable images have nulls.

    Rows of a multi-label model have the list `predicted` as well.
    """
    arrow, parquet = import_pyarrow("--out FILE.csv")
    remaining, multilabel = _are_multilabel(rows)
    schema = arrow.schema(
        [
            ("image", arrow.string()),
            ("error", arrow.string()),
            ("label", arrow.string()),
            ("probability", arrow.float32()),
            ("labels", arrow.list_(arrow.string())),
            ("probabilities", arrow.list_(arrow.float32())),
            *([("predicted", arrow.list_(arrow.string()))] if multilabel else []),
        ]
    )
    with parquet.ParquetWriter(path, schema) as writer:
        while group := list(islice(remaining, GROUP)):
            writer.write_table(arrow.Table.from_pylist([_flat(row) for row in group], schema=schema))


def _flat(row: Row) -> dict[str, Any]:
    answers = row["answers"]
    return {
        "image": valid_utf8(row["image"]),
        "error": row["error"],
        "label": answers[0]["label"] if answers else None,
        "probability": answers[0]["probability"] if answers else None,
        "labels": [answer["label"] for answer in answers] or None,
        "probabilities": [answer["probability"] for answer in answers] or None,
        "predicted": None if row["error"] else row.get("predicted"),
    }


def import_pyarrow(otherwise: str) -> tuple[Any, Any]:
    """Return pyarrow and its Parquet module; where they are missing, the error suggests what else to do."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("Parquet needs pyarrow", try_=f'pip install "vitkit[formats]", or {otherwise}') from None
    return pyarrow, pyarrow.parquet


WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}
