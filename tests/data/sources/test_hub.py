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

from tests.data.sources.sample_sources import pixels_of, png, sample_files, write_files
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.open import open_data

datasets = pytest.importorskip("datasets", reason="needs the extra hub")


@pytest.fixture(autouse=True)
def cache_in_tmp_path(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def make_dataset(labels: dict[str, Any], **features: Any) -> Any:
    """Return a dataset of as many images as there are labels; each column has its own feature."""
    count = len(next(iter(labels.values())))
    columns = {"image": [{"bytes": png(number), "path": None} for number in range(count)], **labels}
    return datasets.Dataset.from_dict(columns, features=datasets.Features({"image": datasets.Image(), **features}))


def saved(path: Path, dataset: Any) -> str:
    dataset.save_to_disk(path)
    return f"hf:{path}"


def error_of(source: str, **options: str) -> str:
    with pytest.raises(DataError) as error:
        open_data(source, **options)
    return str(error.value)


def test_class_names_splits_and_bytes_are_those_of_the_dataset(tmp_path: Path):
    names = datasets.ClassLabel(names=["dog", "cat", "never"])
    dataset = datasets.DatasetDict(
        {
            "train": make_dataset({"label": [0, 1, 0]}, label=names),
            "validation": make_dataset({"label": [1, 0]}, label=names),
            "test": make_dataset({"label": [-1]}, label=names),
        }
    )
    data = open_data(saved(tmp_path / "set", dataset))
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


def test_a_folder_of_images_loads_as_the_library_reads_it(tmp_path: Path):
    write_files(tmp_path / "photos", sample_files())
    data, folders = open_data(f"hf:{tmp_path / 'photos'}"), open_data(tmp_path / "photos")
    assert data.classes == folders.classes
    for split in folders.splits:
        ours, theirs = folders.splits[split], data.splits[split]
        assert sorted((ours.read(i), int(ours.labels[i])) for i in range(len(ours))) == sorted(
            (theirs.read(i), int(theirs.labels[i])) for i in range(len(theirs))
        )


def test_lists_of_classes_are_multi_label(tmp_path: Path):
    several = datasets.List(datasets.ClassLabel(names=["z", "a"]))
    data = open_data(saved(tmp_path / "set", make_dataset({"tags": [[0], [], [0, 1]]}, tags=several)))
    assert (data.multilabel, data.classes) == (True, ("a", "z"))
    assert data.splits["all"].labels.dense().tolist() == [[False, True], [False, False], [True, True]]


def test_lists_of_names_and_missing_lists_are_multi_label(tmp_path: Path):
    rows = [["sun", "sea"], None, [], ["sea", None, "", "sea"], ["dune"]]
    dataset = make_dataset({"label": rows}, label=datasets.List(datasets.Value("string")))
    parts = [dataset.select([0, 1, 2]), dataset.select([3, 4])]  # Arrow keeps them in two chunks
    data = open_data(saved(tmp_path / "set", datasets.concatenate_datasets(parts)))
    assert data.classes == ("dune", "sea", "sun")
    labels = data.splits["all"].labels
    assert [labels[row].tolist() for row in range(5)] == [[1, 2], [], [], [1], [0]]


def test_lists_of_lists_are_no_labels(tmp_path: Path):
    nested = make_dataset({"label": [[["a"]], [["b"]]]}, label=datasets.List(datasets.List(datasets.Value("string"))))
    assert "['a'] in the column label is not a label" in error_of(saved(tmp_path / "set", nested))


def test_strings_and_integers_are_labels_too(tmp_path: Path):
    strings = open_data(
        saved(tmp_path / "1", make_dataset({"label": ["b", "a", None]}, label=datasets.Value("string")))
    )
    assert (strings.classes, strings.splits["all"].labels.tolist()) == (("a", "b"), [1, 0, -1])
    integers = open_data(saved(tmp_path / "2", make_dataset({"label": [10, 2, 2]}, label=datasets.Value("int64"))))
    assert (integers.classes, integers.splits["all"].labels.tolist()) == (("2", "10"), [1, 0, 0])


def test_one_of_several_label_columns_has_to_be_named(tmp_path: Path):
    pair = make_dataset(
        {"breed": [0, 1], "colour": [1, 0]},
        breed=datasets.ClassLabel(names=["pug", "collie"]),
        colour=datasets.ClassLabel(names=["black", "white"]),
    )
    source = saved(tmp_path / "set", pair)
    assert "more than one label column: breed, colour" in error_of(source)
    assert open_data(source, label="colour").classes == ("black", "white")
    assert "has no column 'size'" in error_of(source, label="size")


def test_a_label_column_of_another_name_can_be_named(tmp_path: Path):
    text = datasets.Value("string")
    source = saved(
        tmp_path / "set", make_dataset({"breed": ["Korat", "Manx"], "url": ["a", "b"]}, breed=text, url=text)
    )
    data = open_data(source)
    assert data.classes == ()
    assert any("--label COLUMN uses another column: breed, url" in note for note in data.notes)
    assert open_data(source, label="breed").classes == ("Korat", "Manx")


def test_splits_of_unknown_names_are_skipped_and_noted(tmp_path: Path):
    one = make_dataset({"label": [0]}, label=datasets.ClassLabel(names=["a"]))
    data = open_data(saved(tmp_path / "1", datasets.DatasetDict({"train": one, "unsupervised": one})))
    assert list(data.splits) == ["train"]
    assert "splits of unknown names, skipped: unsupervised (1)" in data.notes
    assert "no split of a known name" in error_of(saved(tmp_path / "2", datasets.DatasetDict({"x": one, "y": one})))


def test_a_dataset_without_images_is_an_error(tmp_path: Path):
    text = datasets.Dataset.from_dict({"text": ["a"], "label": [0]})
    message = error_of(saved(tmp_path / "set", text))
    assert "has no column of images" in message
    assert "text: Value" in message


def test_an_empty_cell_is_an_error_when_it_is_read(tmp_path: Path):
    rows = datasets.Dataset.from_dict(
        {"image": [{"bytes": png(1), "path": None}, None]}, features=datasets.Features({"image": datasets.Image()})
    )
    part = open_data(saved(tmp_path / "set", rows)).splits["all"]
    assert part.read(0) == png(1)
    with pytest.raises(DataError, match=r"all\[1\] cannot be read: the cell is empty"):
        part.read(1)


def test_a_16_bit_image_keeps_its_bytes(tmp_path: Path):
    pixels = np.array([[0, 40_000], [65_535, 1]], dtype=np.uint16)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
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
    calls = []

    def load(*args: object, **options: object) -> Any:
        calls.append((args, options))
        return make_dataset({"label": [0]}, label=datasets.ClassLabel(names=["a"]))

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert open_data("hf:owner/name:small@v1").classes == ("a",)
    open_data("hf:cifar10")
    assert calls == [(("owner/name", "small"), {"revision": "v1"}), (("cifar10", None), {"revision": None})]


def test_without_the_library_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert 'pip install "vitkit[hub]"' in error_of("hf:cifar10")
