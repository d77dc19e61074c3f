"""Every kind of source gives the same bytes or pixels, labels and classes, also in another process."""

from __future__ import annotations

import multiprocessing
import tarfile
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.sources.sample_sources import (
    ImageFiles,
    as_csv,
    as_jsonl,
    as_npz,
    class_names,
    pixels_of,
    png,
    sample_files,
    write_files,
)
from vitkit.data.loader import Loader
from vitkit.data.shard_writer import write_shards
from vitkit.data.sources.dataset import Data, Split
from vitkit.data.sources.open import open_data
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import TrainTransform

KINDS = ("folders", "csv", "jsonl", "npz", "compressed npz", "shards", "shards of arrays", "zip", "stored zip", "hf")


def opened(kind: str, root: Path, images: ImageFiles) -> Data:
    folder = write_files(root / "photos", images)
    if kind in ("csv", "jsonl"):
        return open_data({"csv": as_csv, "jsonl": as_jsonl}[kind](folder, images))
    if kind.endswith("npz"):
        return open_data(as_npz(root / "a.npz", images, compressed=kind != "npz"))
    if kind.startswith("shards"):
        write_shards(open_data(folder if kind == "shards" else as_npz(root / "a.npz", images)), root / "shards")
        return open_data(root / "shards")
    if kind.endswith("zip"):
        packing = zipfile.ZIP_STORED if kind == "stored zip" else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(root / "photos.zip", "w", packing) as archive:
            for path in reversed(images):
                archive.write(folder / path, path)
        return open_data(root / "photos.zip")
    if kind == "tar":
        with tarfile.open(root / "photos.tar", "w") as tar:
            tar.add(folder, arcname=".")
        return open_data(root / "photos.tar")
    if kind == "hf":
        datasets = pytest.importorskip("datasets", reason="needs the extra hub")
        datasets.disable_progress_bars()
        for split in ("train", "test"):
            chosen = {path: images[path] for path in sorted(images) if path.startswith(split)}
            columns = {
                "image": [{"bytes": content, "path": None} for content in chosen.values()],
                "label": [class_names(images).index(path.split("/")[1]) for path in chosen],
            }
            features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=class_names(images))}
            table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
            (root / "hf").mkdir(exist_ok=True)
            table.to_parquet(root / "hf" / f"{split}.parquet")
        before = datasets.config.HF_DATASETS_CACHE
        datasets.config.HF_DATASETS_CACHE = root / "cache"
        try:
            return open_data(f"hf:{root / 'hf'}")
        finally:
            datasets.config.HF_DATASETS_CACHE = before
    return open_data(folder)


def content(split: Split) -> list[bytes | np.ndarray]:
    return [split.read(index) for index in range(len(split))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_source_gives_the_same_images_and_labels(kind: str, tmp_path: Path):
    images = sample_files()
    data = opened(kind, tmp_path, images)
    assert data.classes == ("cat", "dog", "übung")
    assert list(data.splits) == ["train", "test"]
    for name, split in data.splits.items():
        expected = {path: images[path] for path in sorted(images) if path.startswith(name)}
        assert [data.classes[label] for label in split.labels] == [path.split("/")[1] for path in expected]
        assert split.labels.dtype == np.int64
        for image, path in zip(content(split), expected, strict=True):
            np.testing.assert_array_equal(pixels_of(image), pixels_of(images[path]))
            assert isinstance(image, np.ndarray) or image == images[path]


@pytest.mark.parametrize("kind", [*KINDS, "tar"])
def test_in_every_kind_of_source_equivalent_unicode_names_are_one_class(kind: str, tmp_path: Path):
    """Archives from Macs have decomposed names, others do not; this folder has both, as real files."""
    images = {
        f"{split}/{unicodedata.normalize(form, name)}/{number}.png": png(seed)
        for seed, (split, form, name, number) in enumerate(
            [
                ("train", "NFC", "고양이", 1),
                ("train", "NFC", "Übung", 2),
                ("train", "NFD", "Übung", 3),
                ("train", "NFD", "개", 4),
                ("test", "NFD", "고양이", 5),
                ("test", "NFC", "Übung", 6),
            ]
        )
    }
    data = opened(kind, tmp_path, images)
    assert data.classes == ("Übung", "개", "고양이")
    assert all(unicodedata.is_normalized("NFC", name) for name in data.classes)
    loaded = {
        (split, pixels_of(part.read(index)).tobytes(), unicodedata.normalize("NFD", data.classes[label]))
        for split, part in data.splits.items()
        for index, label in enumerate(part.labels)
    }
    assert loaded == {
        (split, pixels_of(content).tobytes(), unicodedata.normalize("NFD", name))
        for path, content in images.items()
        for split, name, _ in [path.split("/")]
    }
    assert data.notes == ("test has no image of 1 class: 개",)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_every_kind_of_source_is_read_in_another_process(start: str, tmp_path: Path):
    splits = [opened(kind, tmp_path / kind, sample_files()).splits["test"].select([2, 0]) for kind in KINDS]
    splits.append(open_data("fashion").splits["test"].select([500, 3]))
    local = [content(split) for split in splits]  # files are open, arrays are loaded
    with multiprocessing.get_context(start).Pool(2) as pool:
        remote = pool.map(content, splits, chunksize=3)
    for ours, theirs in zip(local, remote, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(pixels_of(one), pixels_of(other))


def test_every_kind_of_source_gives_the_same_training_batches(tmp_path: Path):
    splits = [opened(kind, tmp_path / kind, sample_files()).splits["train"] for kind in KINDS]
    datasets = [SplitDataset(split=split, transform=TrainTransform(image=(16, 16))) for split in splits]
    for step in (0, 1, 7, 1234):
        first, *others = [next(iter(Loader(dataset, batch_size=4, start=step))) for dataset in datasets]
        for other in others:
            assert torch.equal(first.images, other.images)
            assert torch.equal(first.labels, other.labels)
