"""`hf:NAME`: a dataset of the Hugging Face Hub, or a local folder of one, through the `datasets` library."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitkit.data.bounded_read import read_image_file
from vitkit.data.sources.class_labels import NamedLabels, RawSplit, build_data
from vitkit.data.sources.dataset import Data, DataError, PackedStrings
from vitkit.data.sources.group_pattern import GROUP_COLUMN, group_note
from vitkit.data.sources.image_files import no_label_column_note
from vitkit.data.sources.splits import ALL, canonical_split, check_split_spellings
from vitkit.data.sparse_labels import SparseLabels
from vitkit.text import few

PREFIX = "hf:"
IMAGES = ("image", "img", "picture", "pixel_values")
LABELS = ("label", "labels", "class", "target", "category", "fine_label")


class HubImages:
    def __init__(self, dataset: Any, column: str) -> None:
        self.dataset, self.column = dataset, column  # pickled as references to memory-mapped files

    def read(self, row: int) -> bytes:
        cell = self.dataset[row][self.column]
        if cell is None or (cell["bytes"] is None and cell["path"] is None):
            raise DataError("the cell is empty")
        if cell["bytes"] is not None:
            return cell["bytes"]
        return read_image_file(cell["path"])


def open_hub(name: str, *, label: str | None = None, group: str | None = None) -> Data:
    """Open `hf:OWNER/NAME`, `hf:OWNER/NAME:CONFIG`, `hf:OWNER/NAME@REVISION` or `hf:FOLDER`."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{name} needs the datasets library.", try_='pip install "vitkit[hub]"') from error
    splits = _load(datasets, name)
    features = next(iter(splits.values())).features
    image = _image_column(datasets, name, features)
    chosen = _label_column(datasets, name, features, label)
    canonical = {split: canonical_split(split) for split in splits}
    notes = (
        [] if chosen is not None else [no_label_column_note(LABELS, [column for column in features if column != image])]
    )
    if any(canonical.values()):
        check_split_spellings(name, [split for split, known in canonical.items() if known])
        skipped = [f"{split} ({len(splits[split]):,})" for split, known in canonical.items() if not known]
        notes += [f"splits of unknown names, skipped: {few(skipped)}"] if skipped else []
    elif len(splits) == 1:
        canonical = dict.fromkeys(splits, ALL)
    else:
        raise DataError(
            f"{name} has no split of a known name.",
            expected="train, val, test and their usual spellings",
            found=few(list(splits)),
        )
    group = group or (GROUP_COLUMN if GROUP_COLUMN in features else None)
    raw_splits = {}
    for split, known in canonical.items():
        if known:
            rows = splits[split].cast_column(image, datasets.Image(decode=False))
            raw_splits[known] = RawSplit(
                PackedStrings(f"{split}[{row}]" for row in range(len(rows))),
                HubImages(rows.select_columns([image]), image),
                _labels(datasets, name, rows, chosen),
                _groups(rows, group) if group in features else None,
            )
    named = [text for raw in raw_splits.values() for text in raw.groups or ()]
    notes += [group_note(named, f"the column {group}")] if named else []
    return build_data(name, "Hugging Face dataset", raw_splits, notes=notes)


def _load(datasets: Any, name: str) -> dict[str, Any]:
    address = name.removeprefix(PREFIX)
    folder = Path(address).expanduser()
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            loaded = datasets.load_from_disk(os.fspath(folder))
        elif folder.is_dir():
            loaded = datasets.load_dataset(os.fspath(folder))
        else:
            repository, _, revision = address.partition("@")
            repository, _, config = repository.partition(":")
            loaded = datasets.load_dataset(repository, config or None, revision=revision or None)
    except Exception as error:  # the library, its network and its parsers can raise anything
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{name} cannot be loaded by the datasets library.",
            because=first[:300],
            expected="hf:OWNER/NAME, hf:OWNER/NAME:CONFIG, hf:OWNER/NAME@REVISION or hf:FOLDER",
        ) from error
    return dict(loaded) if isinstance(loaded, dict) else {str(loaded.split or ALL): loaded}


def _image_column(datasets: Any, name: str, features: Any) -> str:
    images = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    if len(images) == 1:
        return images[0]
    for word in IMAGES:
        if word in images:
            return word
    raise DataError(
        f"{name} has {'more than one column' if images else 'no column'} of images.", found=_described(features)
    )


def _label_column(datasets: Any, name: str, features: Any, label: str | None) -> str | None:
    if label is not None:
        if label not in features:
            raise DataError(f"{name} has no column {label!r}.", found=_described(features))
        return label
    named = [column for column, feature in features.items() if _class_names(datasets, feature) is not None]
    candidates = named or [column for column in features if column in LABELS]
    if len(candidates) <= 1:
        return candidates[0] if candidates else None
    for word in LABELS:
        if word in candidates:
            return word
    raise DataError(
        f"{name} has more than one label column: {', '.join(candidates)}.",
        found=_described(features),
        try_="name the one to use: --label COLUMN",
    )


def _is_list(datasets: Any, feature: Any) -> bool:
    return isinstance(feature, datasets.List | datasets.Sequence | list)


def _class_names(datasets: Any, feature: Any) -> list[str] | None:
    inner = feature.feature if isinstance(feature, datasets.List) else feature
    return list(inner.names) if isinstance(inner, datasets.ClassLabel) and inner.names else None


def _labels(datasets: Any, name: str, rows: Any, column: str | None) -> Sequence[str | None] | NamedLabels:
    if column is None:
        return [None] * len(rows)
    values = rows.select_columns([column]).with_format("arrow")[:][column]
    names = _class_names(datasets, rows.features[column])

    def named(value: Any) -> str | None:
        if value is None or value == "" or (names is not None and value == -1):  # -1: a test set without labels
            return None
        if not isinstance(value, str | int):
            raise DataError(f"{name}: {value!r} in the column {column} is not a label; expected text or an integer.")
        return names[int(value)] if names is not None else str(value)

    if _is_list(datasets, rows.features[column]):
        return _label_lists(values.chunks, named)
    return [named(value) for value in values.to_pylist()]


def _label_lists(chunks: Iterable[Any], named: Callable[[Any], str | None]) -> NamedLabels:
    """Read Arrow lists by their offsets; a Python object is made for each class, not for each label."""
    index: dict[str, int] = {}
    lengths, numbers = [np.zeros(1, np.int64)], [np.zeros(0, np.int64)]
    for chunk in chunks:
        # a list that is missing has no labels
        lengths.append(np.asarray(chunk.value_lengths().fill_null(0), dtype=np.int64))
        flat = chunk.flatten()
        if flat.type.num_fields:  # lists of lists or of records
            named(flat[0].as_py() if len(flat) else None)
        encoded = flat.dictionary_encode()
        texts = [named(value) for value in encoded.dictionary.to_pylist()]
        target = [-1 if text is None else index.setdefault(text, len(index)) for text in texts]
        numbers.append(np.array([*target, -1])[np.asarray(encoded.indices.fill_null(len(target)), dtype=np.int64)])
    offsets, labels = np.cumsum(np.concatenate(lengths)), np.concatenate(numbers)
    removed = np.append(0, np.cumsum(labels < 0))[offsets]
    return NamedLabels(list(index), SparseLabels(offsets - removed, labels[labels >= 0], len(index)))


def _groups(rows: Any, column: str | None) -> list[str | None]:
    values = rows.select_columns([column]).with_format("arrow")[:][column].to_pylist()
    return [None if value is None or value == "" else str(value) for value in values]


def _described(features: Any) -> list[str]:
    return [f"{column}: {type(feature).__name__}" for column, feature in features.items()][:8]
