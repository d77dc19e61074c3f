"""A manifest: a CSV or JSONL file that lists images, their labels and, if there is such a column, their splits."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.sources.class_labels import NamedLabelRows, NamedLabels, RawSplit, build_data
from vitkit.data.sources.dataset import Data, DataError, PackedStrings
from vitkit.data.sources.group_pattern import group_note
from vitkit.data.sources.image_files import FileImages, no_label_column_note, without_credentials
from vitkit.data.sources.manifest_columns import (
    LABEL_COLUMNS,
    MULTILABEL_COLUMNS,
    PATH_COLUMNS,
    ManifestColumns,
    find_columns,
    find_group_column,
    path_column,
)
from vitkit.data.sources.manifest_masks import (
    MASK_COLUMNS,
    ListedMasks,
    find_mask_column,
    no_mask_column,
    open_listed_masks,
)
from vitkit.data.sources.manifest_paths import check_files_exist, complete_paths
from vitkit.data.sources.manifest_rows import ManifestRows, Row
from vitkit.data.sources.one_hot import one_hot_classes, with_labels
from vitkit.data.sources.splits import ALL, SPLITS, canonical_split
from vitkit.data.task import Task
from vitkit.regular_file import open_regular
from vitkit.storage.urls import is_url
from vitkit.text import counted, printable

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
MAX_LABEL = 60  # characters of a label, maybe a caption, that a note shows


def open_manifest(
    name: str,
    file: Path,
    *,
    label: str | None = None,
    group: str | None = None,
    location: str = "",
    task: Task = "classify",
) -> Data:
    """Open a manifest; its paths are URLs, or relative to its folder, or to the remote folder `location`."""
    location = location or str(file.parent)
    known = (*PATH_COLUMNS, *LABEL_COLUMNS, *MULTILABEL_COLUMNS, *MASK_COLUMNS, "split")
    rows: Iterable[Row] = (manifest := ManifestRows(name, file, known))
    names = manifest.columns()
    if next(iter(rows), None) is None:
        has_header = any(not character.isspace() for character in _start(file))
        raise DataError(
            f"{name} lists no images.", found="nothing below the header line" if has_header else "an empty file"
        )
    notes = list[str]()
    if task != "classify":
        data, notes = _open_masks(name, file, rows, names, label, group, location)
        if data is not None:
            return data
        if task == "segment":
            raise no_mask_column(name, names, notes)
    columns = find_columns(name, names, label)
    group_column = find_group_column(names, columns, group)
    if columns.label is None:
        others = [column for column in names if column not in (columns.path, columns.split, group_column)]
        if classes := one_hot_classes(name, rows, others):
            rows, multilabel, note = with_labels(rows, classes, others)
            columns = replace(columns, label="labels" if multilabel else "label", multilabel=multilabel)
        else:
            note = no_label_column_note(LABEL_COLUMNS + MULTILABEL_COLUMNS, others)
        notes.append(note)
    entries = _read_entries(name, rows, columns, group_column)
    if group_column:
        notes.insert(0, group_note(entries.groups, f"the column {group_column}"))
    paths = entries.paths
    if not is_url(location):
        paths, note = complete_paths(name, file.parent, entries.lines, entries.paths)
        notes += [note] if note else []
        check_files_exist(name, file.parent, entries.lines, paths)
    notes += [*_joined_label_notes(entries.joined, columns), *_repeated_path_notes(paths)]
    splits = {}
    for number in dict.fromkeys(entries.splits):
        split, chosen = SPLITS[number], np.flatnonzero(np.array(entries.splits) == number)
        own = paths.select(chosen)
        splits[split] = RawSplit(
            without_credentials(own),
            FileImages(location, own),
            entries.labels_of(chosen),
            [entries.groups[row] for row in chosen] if group_column else None,
        )
    return build_data(name, "manifest", splits, notes=notes)


def _open_masks(
    name: str,
    file: Path,
    rows: Iterable[Row],
    names: list[str],
    label: str | None,
    group: str | None,
    location: str,
) -> tuple[Data | None, list[str]]:
    """Return the images with the masks that a column names, or None; and notes on masks that are not read."""
    path = path_column(name, names)
    column = find_mask_column(rows, names, path, label)
    if column is None:
        return None, []
    if column.is_remote or is_url(location):
        return None, [
            f"the column {printable(column.name)} names masks behind a URL, which are not read: download them"
        ]
    columns = replace(find_columns(name, names, column.name), multilabel=False)
    group_column = find_group_column(names, columns, group)
    entries = _read_entries(name, rows, columns, group_column)
    assert isinstance(entries.labels, list)
    masks = PackedStrings(mask or "" for mask in entries.labels)
    paths, note = complete_paths(name, file.parent, entries.lines, entries.paths, masks)
    check_files_exist(name, file.parent, entries.lines, paths)
    check_files_exist(name, file.parent, entries.lines, masks, "mask")
    notes = [group_note(entries.groups, f"the column {group_column}")] if group_column else []
    notes += [*([note] if note else []), *_repeated_path_notes(paths)]
    listed = ListedMasks(paths, masks, np.array(entries.splits), entries.groups if group_column else None)
    return open_listed_masks(name, file, location, listed, column, notes), []


def _repeated_path_notes(paths: PackedStrings) -> Iterator[str]:
    # hashes instead of the paths themselves, which would be a gigabyte of strings for millions of images
    repeated = len(paths) - len(np.unique(np.fromiter(map(hash, paths), np.int64, len(paths))))
    if repeated:
        yield f"{counted(repeated, 'line')} repeat{'s' if repeated == 1 else ''} an earlier path"


def _start(file: Path) -> str:
    with open_regular(file) as stream:
        content: bytes = stream.read(1024)
    return content.decode("utf-8-sig", "replace")


@dataclass
class _Entries:
    """The columns of a manifest over all images; equal strings are one object."""

    lines: "array[int]"
    paths: PackedStrings
    splits: "array[int]"  # indices of SPLITS
    groups: list[str | None]  # empty without a column of groups
    labels: list[str | None] | NamedLabels
    joined: str | None  # a label that may mean several

    def labels_of(self, rows: NDArray[np.int64]) -> list[str | None] | NamedLabels:
        if isinstance(self.labels, NamedLabels):
            return replace(self.labels, labels=self.labels.labels[rows])
        return [self.labels[row] for row in rows]


def _read_entries(name: str, rows: Iterable[Row], columns: ManifestColumns, group_column: str | None) -> _Entries:
    lines, splits = array("q"), array("b")
    groups, single, several = list[str | None](), list[str | None](), NamedLabelRows()
    equal: dict[str, str] = {}
    joined: str | None = None

    def read() -> Iterator[str]:
        nonlocal joined
        for line, cells in rows:
            path, label, split = _entry(name, line, cells, columns)
            lines.append(line)
            splits.append(SPLITS.index(split))
            if columns.multilabel:
                several.add(label)
            else:
                single.append(None if label is None else equal.setdefault(label, label))
            if group_column is not None:
                group = _group(name, line, cells.get(group_column))
                groups.append(None if group is None else equal.setdefault(group, group))
            if joined is None and columns.label is not None:
                joined = _joined_label(cells.get(columns.label), columns.multilabel)
            yield path

    paths = PackedStrings(read())
    return _Entries(lines, paths, splits, groups, several.build() if columns.multilabel else single, joined)


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


def _joined_label(cell: Any, multilabel: bool) -> str | None:
    """Return a label of a cell that is read as one class and may mean several; class names may contain commas."""
    signs = "," if multilabel else ",|;"
    if not isinstance(cell, str) or not any(sign in cell for sign in signs):
        return None
    labels = _split_cell(cell) if multilabel else [cell]
    return next((label.strip() for label in labels if any(sign in label for sign in signs)), None)


def _joined_label_notes(joined: str | None, columns: ManifestColumns) -> Iterator[str]:
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
