"""One-hot columns of a manifest: a column of 0 and 1 for each class, as competitions publish them."""

from collections.abc import Collection, Sequence
from typing import Any

from vitkit.data.sources.dataset import DataError
from vitkit.text import few

INDEX_COLUMNS = ("", "unnamed: 0", "index", "id", "fold", "group")  # numbers that are not classes
VALUES = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
NO_VALUE = ("", "none", "nan", "-1", "-1.0")  # as tables write unknown or uncertain; 0 or 1 would be a guess

Row = tuple[int, dict[str, Any]]  # the line it ends on, its cells by column


def one_hot_classes(name: str, rows: Sequence[Row], others: Collection[str]) -> list[str]:
    """Return the columns among `others` that hold 0 and 1 only, if there are two or more, else none.

    Columns of 0 and 1 with gaps are an error: whether an empty cell is a no is the user's to say.
    """
    complete, gaps = [], dict[str, str]()
    for column in others:
        if column.lower() in INDEX_COLUMNS:
            continue
        cells = {_text(row.get(column)): line for line, row in reversed(rows)}  # value → the first line with it
        if cells.keys() <= VALUES.keys():
            complete.append(column)
        elif cells.keys() <= {*VALUES, *NO_VALUE} and cells.keys() & VALUES.keys():
            value, line = next((value, line) for value, line in cells.items() if value in NO_VALUE)
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


def with_labels(rows: Sequence[Row], classes: Sequence[str], others: Collection[str]) -> tuple[list[Row], bool, str]:
    """Return the rows with a cell `label`, or `labels` where they are multi-label; whether they are; and a note."""
    found = [[column for column in classes if VALUES[_text(cells.get(column))]] for _, cells in rows]
    single = all(len(labels) == 1 for labels in found)
    labelled = [
        (line, {**cells, **({"label": labels[0]} if single else {"labels": labels})})
        for (line, cells), labels in zip(rows, found, strict=True)
    ]
    kind = "one class per image" if single else "multi-label: images with none or several of them"
    unread = [column for column in others if column not in classes]
    note = f"{len(classes)} columns of 0 and 1 are the classes ({few(classes)}), {kind}"
    return labelled, not single, note + (f"; not read: {few(unread)}" if unread else "")


def _text(cell: Any) -> str:
    return str(cell).strip().lower()
