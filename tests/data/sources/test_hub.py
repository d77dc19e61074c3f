"""`hf:` against datasets that the `datasets` library itself wrote."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.sources.made import lay_out, pixels_of, png, some
from vitkit.data.sources.base import DataError
from vitkit.data.sources.open import open_data

datasets = pytest.importorskip("datasets", reason="needs the extra hub")


@pytest.fixture(autouse=True)
def quiet_and_here(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def made(labels: dict[str, Any], **features: Any) -> Any:
    """A dataset of as many pictures as there are labels; each column has its own feature."""
    count = len(next(iter(labels.values())))
    columns = {"image": [{"bytes": png(number), "path": None} for number in range(count)], **labels}
    return datasets.Dataset.from_dict(columns, features=datasets.Features({"image": datasets.Image(), **features}))


def saved(path: Path, found: Any) -> str:
    found.save_to_disk(path)
    return f"hf:{path}"


def error_of(source: str, **options: str) -> str:
    with pytest.raises(DataError) as error:
        open_data(source, **options)
    return str(error.value)


def test_names_splits_and_bytes_are_the_datasets_own(tmp_path: Path):
    names = datasets.ClassLabel(names=["dog", "cat", "never"])
    whole = datasets.DatasetDict(
        {
            "train": made({"label": [0, 1, 0]}, label=names),
            "validation": made({"label": [1, 0]}, label=names),
            "test": made({"label": [-1]}, label=names),
        }
    )
    data = open_data(saved(tmp_path / "set", whole))
    assert (data.kind, data.classes) == ("Hugging Face dataset", ("cat", "dog"))
    assert {name: part.labels.tolist() for name, part in data.splits.items()} == {
        "train": [1, 0, 1],
        "val": [0, 1],
        "test": [-1],
    }
    part = data.splits["train"]
    assert (part.read(2), part.keys[2]) == (png(2), "train[2]")
    assert pickle.loads(pickle.dumps(part)).select([1]).read(0) == png(1)
    for index, row in enumerate(datasets.load_from_disk(tmp_path / "set")["train"]):
        np.testing.assert_array_equal(pixels_of(part.read(index)), np.asarray(row["image"]))


def test_a_folder_of_pictures_loads_as_the_library_reads_it(tmp_path: Path):
    lay_out(tmp_path / "photos", some())
    data, folders = open_data(f"hf:{tmp_path / 'photos'}"), open_data(tmp_path / "photos")
    assert data.classes == folders.classes
    for split in folders.splits:
        ours, theirs = folders.splits[split], data.splits[split]
        assert sorted((ours.read(i), int(ours.labels[i])) for i in range(len(ours))) == sorted(
            (theirs.read(i), int(theirs.labels[i])) for i in range(len(theirs))
        )


def test_lists_of_classes_are_multi_label(tmp_path: Path):
    several = datasets.List(datasets.ClassLabel(names=["z", "a"]))
    data = open_data(saved(tmp_path / "set", made({"tags": [[0], [], [0, 1]]}, tags=several)))
    assert (data.multilabel, data.classes) == (True, ("a", "z"))
    assert data.splits["all"].labels.tolist() == [[False, True], [False, False], [True, True]]


def test_plain_words_and_numbers_are_labels_too(tmp_path: Path):
    words = open_data(saved(tmp_path / "1", made({"label": ["b", "a", None]}, label=datasets.Value("string"))))
    assert (words.classes, words.splits["all"].labels.tolist()) == (("a", "b"), [1, 0, -1])
    numbers = open_data(saved(tmp_path / "2", made({"label": [10, 2, 2]}, label=datasets.Value("int64"))))
    assert (numbers.classes, numbers.splits["all"].labels.tolist()) == (("2", "10"), [1, 0, 0])


def test_of_several_columns_of_labels_one_is_named(tmp_path: Path):
    pair = made(
        {"breed": [0, 1], "colour": [1, 0]},
        breed=datasets.ClassLabel(names=["pug", "collie"]),
        colour=datasets.ClassLabel(names=["black", "white"]),
    )
    source = saved(tmp_path / "set", pair)
    assert "more than one column of labels: breed, colour" in error_of(source)
    assert open_data(source, label="colour").classes == ("black", "white")
    assert "has no column 'size'" in error_of(source, label="size")


def test_a_column_of_another_name_is_told_and_taken(tmp_path: Path):
    words = datasets.Value("string")
    source = saved(tmp_path / "set", made({"breed": ["Korat", "Manx"], "url": ["a", "b"]}, breed=words, url=words))
    data = open_data(source)
    assert data.classes == ()
    assert any("--label COLUMN takes another of its columns: breed, url" in note for note in data.notes)
    assert open_data(source, label="breed").classes == ("Korat", "Manx")


def test_unusual_splits_are_left_out_and_told(tmp_path: Path):
    one = made({"label": [0]}, label=datasets.ClassLabel(names=["a"]))
    data = open_data(saved(tmp_path / "1", datasets.DatasetDict({"train": one, "unsupervised": one})))
    assert list(data.splits) == ["train"]
    assert "splits of no usual name, left out: unsupervised (1)" in data.notes
    assert "no split that I know" in error_of(saved(tmp_path / "2", datasets.DatasetDict({"x": one, "y": one})))


def test_a_dataset_without_pictures_is_told(tmp_path: Path):
    text = datasets.Dataset.from_dict({"text": ["a"], "label": [0]})
    message = error_of(saved(tmp_path / "set", text))
    assert "has no column of pictures" in message
    assert "text: Value" in message


def test_an_empty_cell_is_told_when_it_is_read(tmp_path: Path):
    rows = datasets.Dataset.from_dict(
        {"image": [{"bytes": png(1), "path": None}, None]}, features=datasets.Features({"image": datasets.Image()})
    )
    part = open_data(saved(tmp_path / "set", rows)).splits["all"]
    assert part.read(0) == png(1)
    with pytest.raises(DataError, match=r"all\[1\] cannot be read: the cell is empty"):
        part.read(1)


def test_a_deep_picture_keeps_its_depth(tmp_path: Path):
    deep = np.array([[0, 40_000], [65_535, 1]], dtype=np.uint16)
    buffer = io.BytesIO()
    Image.fromarray(deep).save(buffer, "PNG")
    rows = datasets.Dataset.from_dict(
        {"image": [{"bytes": buffer.getvalue(), "path": None}]}, features=datasets.Features({"image": datasets.Image()})
    )
    assert open_data(saved(tmp_path / "set", rows)).splits["all"].read(0) == buffer.getvalue()


def test_what_the_library_cannot_load_is_one_error(tmp_path: Path, monkeypatch):
    def fail(*args: object, **options: object) -> None:
        raise ConnectionError("Couldn't reach the Hub\nand much more")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    message = error_of("hf:owner/name:small@main")
    assert "Couldn't reach the Hub" in message
    assert "much more" not in message


def test_repository_configuration_and_revision_are_passed_on(monkeypatch):
    asked = []

    def load(*args: object, **options: object) -> Any:
        asked.append((args, options))
        return made({"label": [0]}, label=datasets.ClassLabel(names=["a"]))

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert open_data("hf:owner/name:small@v1").classes == ("a",)
    open_data("hf:cifar10")
    assert asked == [(("owner/name", "small"), {"revision": "v1"}), (("cifar10", None), {"revision": None})]


def test_without_the_library_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert 'pip install "vitkit[hub]"' in error_of("hf:cifar10")
