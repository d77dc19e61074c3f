"""A manifest: a CSV or JSONL file that lists images, their labels and, if there is such a column, their splits."""

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from vitkit.data.sources.class_labels import RawSplit, build_data
from vitkit.data.sources.dataset import Data, DataError, PackedStrings
from vitkit.data.sources.group_pattern import GROUP_COLUMN, group_note
from vitkit.data.sources.image_files import FileImages, no_label_column_note
from vitkit.data.sources.manifest_paths import complete_paths
from vitkit.data.sources.one_hot import one_hot_classes, with_labels
from vitkit.data.sources.splits import ALL, canonical_split
from vitkit.errors import did_you_mean
from vitkit.regular_file import open_regular
from vitkit.text import counted, few, printable

PATH_COLUMNS = ("path", "image", "file", "filename", "file_name", "image_path", "image_name", "image_id", "img", "id")
LABEL_COLUMNS = ("label", "class", "target", "category")
MULTILABEL_COLUMNS = ("labels", "tags")
ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
MAX_LABEL = 60  # characters of a label, maybe a caption, that a note shows

Row = tuple[int, dict[str, Any]]  # the line it ends on, its cells by column


@dataclass(frozen=True)
class ManifestColumns:
    path: str
    label: str | None
    split: str | None
    multilabel: bool


def open_manifest(name: str, file: Path, *, label: str | None = None, group: str | None = None) -> Data:
    text = _text(name, file)
    is_jsonl = file.suffix.lower() in (".jsonl", ".ndjson")
    rows = list(_json_rows(name, text) if is_jsonl else _csv_rows(name, text))
    if not rows:
        raise DataError(
            f"{name} lists no images.",
            found="nothing below the header line" if text.strip() else "an empty file",
        )
    names = _all_columns(rows)
    columns, notes = _columns(name, names, label), list[str]()
    group_column = _group_column(names, columns, group)
    groups = {line: _group(name, line, cells.get(group_column)) for line, cells in rows} if group_column else {}
    if group_column:
        notes.append(group_note(list(groups.values()), f"the column {group_column}"))
    if columns.label is None:
        others = [column for column in names if column not in (columns.path, columns.split, group_column)]
        if classes := one_hot_classes(name, rows, others):
            rows, multilabel, note = with_labels(rows, classes, others)
            columns = replace(columns, label="labels" if multilabel else "label", multilabel=multilabel)
        else:
            note = no_label_column_note(LABEL_COLUMNS + MULTILABEL_COLUMNS, others)
        notes.append(note)
    entries = [(line, *_entry(name, line, cells, columns)) for line, cells in rows]
    completed, note = complete_paths(name, file.parent, [(line, path) for line, path, _, _ in entries])
    notes += [note] if note else []
    entries = [(line, path, labels, split) for (line, _, labels, split), path in zip(entries, completed, strict=True)]
    _check_files_exist(name, file.parent, [(line, path) for line, path, _, _ in entries])
    notes += _joined_label_notes(rows, columns)
    repeated = len(entries) - len({path for _, path, _, _ in entries})
    if repeated:
        notes.append(f"{counted(repeated, 'line')} repeat{'s' if repeated == 1 else ''} an earlier path")
    splits = {}
    for split in dict.fromkeys(split for *_, split in entries):
        chosen = [(path, labels, groups.get(line)) for line, path, labels, own in entries if own == split]
        paths = PackedStrings(path for path, _, _ in chosen)
        splits[split] = RawSplit(
            paths,
            FileImages(str(file.parent), paths),
            [labels for _, labels, _ in chosen],
            [group for *_, group in chosen] if group_column else None,
        )
    return build_data(name, "manifest", splits, notes=notes, multilabel=columns.multilabel)


def _text(name: str, file: Path) -> str:
    try:
        with open_regular(file) as stream:
            content: bytes = stream.read()
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
    table = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    try:
        columns = [cell.strip() for cell in next(table, [])]
        if len(set(columns)) < len(columns):
            raise DataError(f"{name} names a column twice: {', '.join(columns)}.")
        for cells in table:
            if not cells:
                continue
            if len(cells) != len(columns):
                raise DataError(
                    f"{name}, line {table.line_num}: {counted(len(cells), 'cell')} under "
                    f"{counted(len(columns), 'column')} ({few(columns)}).",
                    try_='quotes around a cell that holds the delimiter: "a,b.jpg"',
                )
            yield table.line_num, dict(zip(columns, cells, strict=True))
    except csv.Error as error:
        raise DataError(f"{name}, line {table.line_num}: not CSV: {error}.") from error


def _delimiter(text: str) -> str:
    """Return the delimiter that splits the header into the most known columns; counting alone fails on odd paths."""
    header = (text.splitlines() or [""])[0].replace('"', "").lower()
    known = {*PATH_COLUMNS, *LABEL_COLUMNS, *MULTILABEL_COLUMNS, "split"}
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


def _columns(name: str, names: list[str], label: str | None) -> ManifestColumns:
    known = {column.lower(): column for column in reversed(names)}
    path = next((known[word] for word in PATH_COLUMNS if word in known), None)
    if path is None:
        raise DataError(
            f"{name} has no path column.",
            expected=", ".join(PATH_COLUMNS),
            found=few(names, 8) or "no columns",
            try_="a first line that names the columns: path,label",
        )
    if label is not None:
        if label not in names:
            raise DataError(f"{name} has no column {label!r}{did_you_mean(label, names) or '.'}", found=few(names, 8))
        return ManifestColumns(path, label, known.get("split"), label.lower() in MULTILABEL_COLUMNS)
    single = [known[word] for word in LABEL_COLUMNS if word in known]
    multi = [known[word] for word in MULTILABEL_COLUMNS if word in known]
    if len(single + multi) > 1:
        raise DataError(
            f"{name} has more than one label column: {', '.join(single + multi)}.",
            try_="keep one of them, or name the one to use: --label COLUMN",
        )
    return ManifestColumns(path, next(iter(single + multi), None), known.get("split"), bool(multi))


def _group_column(names: list[str], columns: ManifestColumns, group: str | None) -> str | None:
    """Return the column of groups: the one that the user named, else one called group; a pattern names no column."""
    if group is not None:
        return group if group in names else None
    used = (columns.path, columns.label, columns.split)
    return next((column for column in names if column.lower() == GROUP_COLUMN and column not in used), None)


def _group(name: str, line: int, value: Any) -> str | None:
    if value is None or isinstance(value, str | int):
        return None if value is None else str(value).strip() or None
    raise DataError(f"{name}, line {line}: {value!r} is not the name of a group; expected text or an integer.")


def _entry(name: str, line: int, cells: dict[str, Any], columns: ManifestColumns) -> tuple[str, Any, str]:
    """Return the path, the label or labels, and the split of a row."""
    path = cells.get(columns.path)
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise DataError(f"{name}, line {line}: no path in the column {columns.path}: {path!r}.")
    split = ALL
    if columns.split is not None:
        written = str(cells.get(columns.split, ""))
        split = canonical_split(written.strip()) or ""
        if not split:
            raise DataError(
                f"{name}, line {line}: {written!r} is not a split.", expected="train, trainval, val or test"
            )
    if columns.label is None:
        return path, None, split
    cell = cells.get(columns.label)
    if not columns.multilabel:
        return path, _label(name, line, cell), split
    values = _split_cell(cell) if isinstance(cell, str) else cell
    if not isinstance(values, list) or None in values:
        raise DataError(f"{name}, line {line}: {values!r} is not a list of labels.", try_="[] where none applies")
    return path, [label for value in values if (label := _label(name, line, value))], split


def _split_cell(cell: str) -> list[str]:
    return [label for label in cell.replace(";", "|").split("|") if label.strip()]


def _joined_label_notes(rows: Sequence[Row], columns: ManifestColumns) -> Iterator[str]:
    """Yield a note if cells that are read as one label may mean several; class names may contain commas."""
    cells = (cells.get(columns.label) for _, cells in rows if columns.label is not None)
    labels = chain.from_iterable(
        _split_cell(cell) if columns.multilabel else [cell] for cell in cells if isinstance(cell, str)
    )
    joined = next((label.strip() for label in labels if set(label) & set("," if columns.multilabel else ",|;")), None)
    if joined is not None:
        several = (
            "several labels in a cell are separated by | or ;"
            if columns.multilabel
            else f"several labels in a cell need a column called {' or '.join(MULTILABEL_COLUMNS)}, separated by | or ;"
        )
        shown = joined if len(joined) <= MAX_LABEL else joined[:MAX_LABEL] + "…"
        yield f"labels such as {shown!r} are one class each; {several}"


def _label(name: str, line: int, value: Any) -> str | None:
    """Return a cell as a class name; integers are names too, and an empty cell means unlabelled."""
    if value is None or isinstance(value, str):
        return (value or "").strip() or None
    if isinstance(value, int):
        return str(value)
    raise DataError(f"{name}, line {line}: {value!r} is not a label; expected text or an integer.")


def _check_files_exist(name: str, folder: Path, paths: Sequence[tuple[int, str]]) -> None:
    missing = [(line, path) for line, path in paths if not os.path.isfile(os.path.join(folder, path))]
    if missing:
        tries = "paths are relative to the manifest's folder"
        if any("\\" in path for _, path in missing):
            tries += "; write / instead of \\"
        raise DataError(
            f"{name}: {len(missing):,} of {counted(len(paths), 'image')} "
            f"{'is' if len(missing) == 1 else 'are'} not where the manifest says.",
            looked_in=str(folder),
            missing=[f"line {line}: {printable(path)}" for line, path in missing[:5]]
            + ([f"and {len(missing) - 5:,} more"] if len(missing) > 5 else []),
            try_=tries,
        )
