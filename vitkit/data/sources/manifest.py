"""A CSV or JSONL file that lists pictures, their labels and, where there is such a column, their splits."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from vitkit.data.sources.assemble import Part, assemble
from vitkit.data.sources.base import Data, DataError, Names
from vitkit.data.sources.files import FilePictures, no_column
from vitkit.data.sources.splits import WHOLE, canonical
from vitkit.errors import did_you_mean
from vitkit.text import counted, few, printable

PATH = ("path", "image", "file", "filename", "file_name")
ONE = ("label", "class", "target", "category")
MANY = ("labels", "tags")
ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
LONG = 60  # signs of a label, maybe a caption, from which a note cuts it

Row = tuple[int, dict[str, Any]]  # the line it ends on, its cells by column


@dataclass(frozen=True)
class Columns:
    path: str
    label: str | None
    split: str | None
    multilabel: bool


def open_manifest(name: str, file: Path, *, label: str | None = None) -> Data:
    text = _text(name, file)
    lines = file.suffix.lower() in (".jsonl", ".ndjson")
    rows = list(_json_rows(name, text) if lines else _csv_rows(name, text))
    if not rows:
        raise DataError(
            f"{name} lists no pictures.",
            found="nothing below the line of column names" if text.strip() else "an empty file",
        )
    found = _all_columns(rows)
    columns = _columns(name, found, label)
    entries = [(line, *_entry(name, line, cells, columns)) for line, cells in rows]
    _refuse_missing(name, file.parent, [(line, path) for line, path, _, _ in entries])
    notes = [*_joined(rows, columns)]
    if columns.label is None:
        notes.append(no_column(ONE + MANY, [column for column in found if column not in (columns.path, columns.split)]))
    repeated = len(entries) - len({path for _, path, _, _ in entries})
    if repeated:
        notes.append(f"{counted(repeated, 'line')} repeat{'s' if repeated == 1 else ''} a path that stands above")
    parts = {}
    for split in dict.fromkeys(split for *_, split in entries):
        chosen = [(path, labels) for _, path, labels, where in entries if where == split]
        paths = Names(path for path, _ in chosen)
        parts[split] = Part(paths, FilePictures(str(file.parent), paths), [labels for _, labels in chosen])
    return assemble(name, "manifest", parts, notes=notes, multilabel=columns.multilabel)


def _text(name: str, file: Path) -> str:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}.") from error
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"  # spreadsheets write either
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"{name}, line {line}: not {encoding.removesuffix('-sig').upper()} text.", try_="save it as UTF-8"
        ) from error


def _csv_rows(name: str, text: str) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    try:
        columns = [cell.strip() for cell in next(reader, [])]
        if len(set(columns)) < len(columns):
            raise DataError(f"{name} names a column twice: {', '.join(columns)}.")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(columns):
                raise DataError(
                    f"{name}, line {reader.line_num}: {counted(len(cells), 'cell')} under "
                    f"{counted(len(columns), 'column')} ({few(columns)}).",
                    try_='quotes around a cell that holds the delimiter: "a,b.jpg"',
                )
            yield reader.line_num, dict(zip(columns, cells, strict=True))
    except csv.Error as error:
        raise DataError(f"{name}, line {reader.line_num}: not CSV: {error}.") from error


def _delimiter(text: str) -> str:
    """The one under which the first line names most columns that we know; counting signs fails on odd paths."""
    header = (text.splitlines() or [""])[0].replace('"', "").lower()
    known = {*PATH, *ONE, *MANY, "split"}
    return max(",;\t", key=lambda sign: (sum(cell.strip() in known for cell in header.split(sign)), header.count(sign)))


def _json_rows(name: str, text: str) -> Iterator[Row]:
    for line, content in enumerate(text.split("\n"), start=1):  # not splitlines: JSON strings may hold U+2028
        if not content.strip():
            continue
        try:
            cells = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{name}, line {line}: not JSON: {error}.",
                expected='one object per line, such as {"path": "a.jpg", "label": "cat"}',
            ) from error
        if not isinstance(cells, dict):
            raise DataError(f"{name}, line {line}: a JSON {type(cells).__name__}, not an object.")
        yield line, cells


def _all_columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(column for _, cells in rows for column in cells))


def _columns(name: str, found: list[str], label: str | None) -> Columns:
    known = {column.lower(): column for column in reversed(found)}
    path = next((known[word] for word in PATH if word in known), None)
    if path is None:
        raise DataError(
            f"{name} has no column of paths.",
            looked_for=", ".join(PATH),
            found=few(found, 8) or "no columns",
            try_="a first line that names the columns: path,label",
        )
    if label is not None:
        if label not in found:
            raise DataError(f"{name} has no column {label!r}{did_you_mean(label, found) or '.'}", found=few(found, 8))
        return Columns(path, label, known.get("split"), label.lower() in MANY)
    one = [known[word] for word in ONE if word in known]
    many = [known[word] for word in MANY if word in known]
    if len(one + many) > 1:
        raise DataError(
            f"{name} has more than one column of labels: {', '.join(one + many)}.",
            try_="keep one of them, or name the one to use: --label COLUMN",
        )
    return Columns(path, next(iter(one + many), None), known.get("split"), bool(many))


def _entry(name: str, line: int, cells: dict[str, Any], columns: Columns) -> tuple[str, Any, str]:
    """Path, label or labels, split."""
    path = cells.get(columns.path)
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise DataError(f"{name}, line {line}: no path in the column {columns.path}: {path!r}.")
    split = WHOLE
    if columns.split is not None:
        written = str(cells.get(columns.split, ""))
        split = canonical(written.strip()) or ""
        if not split:
            raise DataError(f"{name}, line {line}: {written!r} is no split.", expected="train, trainval, val or test")
    if columns.label is None:
        return path, None, split
    found = cells.get(columns.label)
    if not columns.multilabel:
        return path, _one(name, line, found), split
    if isinstance(found, str):
        found = _parts(found)
    if not isinstance(found, list) or None in found:
        raise DataError(f"{name}, line {line}: {found!r} is no list of labels.", try_="[] where none applies")
    return path, [label for part in found if (label := _one(name, line, part))], split


def _parts(cell: str) -> list[str]:
    return [part for part in cell.replace(";", "|").split("|") if part.strip()]


def _joined(rows: Sequence[Row], columns: Columns) -> Iterator[str]:
    """Cells that may mean several labels and are read as one. Not mistakes: names of classes may hold commas."""
    cells = (cells.get(columns.label) for _, cells in rows if columns.label is not None)
    words = chain.from_iterable(
        _parts(cell) if columns.multilabel else [cell] for cell in cells if isinstance(cell, str)
    )
    such = next((word.strip() for word in words if set(word) & set("," if columns.multilabel else ",|;")), None)
    if such is not None:
        several = (
            "several labels in a cell are separated by | or ;"
            if columns.multilabel
            else f"several labels in a cell are read from a column called {' or '.join(MANY)}, separated by | or ;"
        )
        shown = such if len(such) <= LONG else such[:LONG] + "…"
        yield f"labels such as {shown!r} are one class each; {several}"


def _one(name: str, line: int, found: Any) -> str | None:
    """Numbers are names too. An empty cell is an unlabelled picture."""
    if found is None or isinstance(found, str):
        return (found or "").strip() or None
    if isinstance(found, int):
        return str(found)
    raise DataError(f"{name}, line {line}: {found!r} is no label; a word or a whole number is.")


def _refuse_missing(name: str, folder: Path, paths: Sequence[tuple[int, str]]) -> None:
    missing = [(line, path) for line, path in paths if not os.path.isfile(os.path.join(folder, path))]
    if missing:
        tries = "paths are relative to the manifest's folder"
        if any("\\" in path for _, path in missing):
            tries += "; write / instead of \\"
        raise DataError(
            f"{name}: {len(missing):,} of {counted(len(paths), 'picture')} "
            f"{'is' if len(missing) == 1 else 'are'} not where the manifest says.",
            looked_in=str(folder),
            missing=[f"line {line}: {printable(path)}" for line, path in missing[:5]]
            + ([f"and {len(missing) - 5:,} more"] if len(missing) > 5 else []),
            try_=tries,
        )
