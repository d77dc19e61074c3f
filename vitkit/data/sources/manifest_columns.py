"""The columns of a manifest: which of them has the images, the labels, the splits and the groups."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.group_pattern import GROUP_COLUMN
from vitkit.errors import did_you_mean
from vitkit.text import few

PATH_COLUMNS = ("path", "image", "file", "filename", "file_name", "image_path", "image_name", "image_id", "img", "id")
LABEL_COLUMNS = ("label", "class", "target", "category")
MULTILABEL_COLUMNS = ("labels", "tags")


@dataclass(frozen=True)
class ManifestColumns:
    path: str
    label: str | None
    split: str | None
    multilabel: bool


def path_column(name: str, names: Sequence[str]) -> str:
    """Return the column of the images."""
    known = {column.lower(): column for column in reversed(names)}
    path = next((known[word] for word in PATH_COLUMNS if word in known), None)
    if path is None:
        raise DataError(
            f"{name} has no path column.",
            expected=", ".join(PATH_COLUMNS),
            found=few(names, 8) or "no columns",
            try_="a first line that names the columns: path,label",
        )
    return path


def find_columns(name: str, names: Sequence[str], label: str | None) -> ManifestColumns:
    """Return the columns of images, labels and splits; `label` names that of the labels."""
    known = {column.lower(): column for column in reversed(names)}
    path = path_column(name, names)
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


def find_group_column(names: Sequence[str], columns: ManifestColumns, group: str | None) -> str | None:
    """Return the column of groups: the one that the user named, else one called group; a pattern names no column."""
    if group is not None:
        return group if group in names else None
    used = (columns.path, columns.label, columns.split)
    return next((column for column in names if column.lower() == GROUP_COLUMN and column not in used), None)
