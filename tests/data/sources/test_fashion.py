from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import vitkit
from tests.data.sources.make_fashion import COUNTS, chosen, original
from tests.data.sources.sample_sources import png, write_files
from vitkit.data.sources.fashion import CLASSES
from vitkit.data.sources.open import open_data

FOLDER = Path(vitkit.__file__).parent / "data" / "fashion"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
PIXELS = {  # SHA-256 of all pixels, image after image
    "train": "be4d837bcb82b52604a89aee8cea7e1b09f8a78a8ac06247e5ba207e5575d42e",
    "test": "cb7664061c04b70c00b69503a00643f3a1db00b6ccef2241d539cbfa60f5ae44",
}


def pixels(split: str) -> np.ndarray:
    part = open_data("fashion").splits[split]
    return np.stack([part.read(index) for index in range(len(part))])


def test_every_class_has_the_same_number_of_images():
    data = open_data("fashion")
    assert data.classes == tuple(sorted(CLASSES))
    assert {name: np.bincount(part.labels).tolist() for name, part in data.splits.items()} == {
        "train": [600] * 10,
        "test": [100] * 10,
    }
    assert data.splits["test"].read(0).shape == (28, 28, 1)
    assert data.splits["test"].keys[999] == "test/ankle boot/099"


@pytest.mark.parametrize("split", PIXELS)
def test_the_pixels_have_the_recorded_hash(split: str):
    assert hashlib.sha256(pixels(split).tobytes()).hexdigest() == PIXELS[split]


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs Debian's dataset-fashion-mnist")
@pytest.mark.parametrize("split", PIXELS)
def test_images_and_labels_are_the_originals(split: str):
    name, count = COUNTS[split]
    images, labels = original(DEBIAN, name)
    rows = chosen(labels, count)
    assert len(set(rows.tolist())) == 10 * count
    np.testing.assert_array_equal(pixels(split)[..., 0], images[rows])
    data = open_data("fashion")
    assert [data.classes[label] for label in data.splits[split].labels] == [CLASSES[label] for label in labels[rows]]


def test_licence_and_credit_are_included_and_the_files_stay_small():
    assert "Zalando SE" in (FOLDER / "LICENSE").read_text()
    assert "1708.07747" in (FOLDER / "README.md").read_text()
    assert sum(path.stat().st_size for path in FOLDER.glob("*.png")) < 3_000_000


def test_a_folder_called_fashion_is_opened_by_its_path(tmp_path: Path, monkeypatch):
    write_files(tmp_path / "fashion", {"hat/1.png": png(1), "tie/1.png": png(2)})
    monkeypatch.chdir(tmp_path)
    assert "write ./fashion" in open_data("fashion").notes[0]
    assert open_data("./fashion").classes == open_data(Path("fashion")).classes == ("hat", "tie")
