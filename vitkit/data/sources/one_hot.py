"""One-hot columns of a manifest: a column of 0 and 1 for each class, as competitions publish them."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.manifest_rows import Row
from vitkit.text import few

INDEX_COLUMNS = ("", "unnamed: 0", "index", "id", "fold", "group")  # numbers that are not classes
VALUES = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
NO_VALUE = ("", "none", "nan", "-1", "-1.0")  # as tables write unknown or uncertain; 0 or 1 would be a guess


def one_hot_classes(name: str, rows: Iterable[Row], others: Collection[str]) -> list[str]:
    """Return the columns among `others` that hold 0 and 1 only, if there are two or more, else none.

    Columns of 0 and 1 with gaps are an error: whether an empty cell is a no is the user's to say.
    """
    columns = {column: dict[str, int]() for column in others if column.lower() not in INDEX_COLUMNS}
    for line, row in rows:
        if not columns:
            return []
        for column, first_lines in list(columns.items()):
            value = _text(row.get(column))
            if value in VALUES or value in NO_VALUE:
                first_lines.setdefault(value, line)
            else:
                del columns[column]
    complete = [column for column, values in columns.items() if values.keys() <= VALUES.keys()]
    gaps = dict[str, str]()
    for column, values in columns.items():
        if column not in complete and values.keys() & VALUES.keys():
            value, line = next((value, line) for value, line in values.items() if value in NO_VALUE)
            gaps[column] = f"{column}, line {line}: {value or 'an empty cell'}"
    if len(complete) + len(gaps) < 2:
        return []
    if gaps:
        raise DataError(
            f"{name} has columns of 0 and 1 with other values in some cells.",
            found=list(gaps.values())[:5] + ([f"and {len(gaps) - 5:,} more columns"] if len(gaps) > 5 else []),
            try_="0 or 1 in every cell of a class; or --label COLUMN to use one column",
        )
    return complete


@dataclass(frozen=True)
class _LabelledRows:
    """The rows of a manifest, each with a cell of the classes whose columns hold a 1."""

    rows: Iterable[Row]
    classes: Sequence[str]
    single: bool

    def __iter__(self) -> Iterator[Row]:
        for line, cells in self.rows:
            labels = _labels(cells, self.classes)
            yield line, {**cells, **({"label": labels[0]} if self.single else {"labels": labels})}


def with_labels(
    rows: Iterable[Row], classes: Sequence[str], others: Collection[str]
) -> tuple[Iterable[Row], bool, str]:
    """Return the rows with a cell `label`, or `labels` where they are multi-label; whether they are; and a note."""
    single = all(len(_labels(cells, classes)) == 1 for _, cells in rows)
    kind = "one class per image" if single else "multi-label: images with none or several of them"
    unread = [column for column in others if column not in classes]
    note = f"{len(classes)} columns of 0 and 1 are the classes ({few(classes)}), {kind}"
    return _LabelledRows(rows, classes, single), not single, note + (f"; not read: {few(unread)}" if unread else "")


def _labels(cells: dict[str, Any], classes: Sequence[str]) -> list[str]:
    return [column for column in classes if VALUES[_text(cells.get(column))]]


def _text(cell: Any) -> str:
    return str(cell).strip().lower()
