"""ImageNet-ReaL on a synthetic validation set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.evaluate.small_model import small_model
from tests.model.kinds import randomise
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.open import open_data
from vitkit.errors import ConfigError
from vitkit.evaluate.classify import evaluate
from vitkit.model.build import Model

SYNSETS = [f"n{number:08d}" for number in range(1000)]


@pytest.fixture
def model() -> Model:
    return randomise(vitkit.create("mu/8", classes=1000, image=8)).eval()


@pytest.fixture
def images(tmp_path: Path) -> dict[int, Path]:
    """Return number → file, one image in each synset's folder, with numbers unrelated to classes."""
    random = np.random.default_rng(0)
    files = {}
    for synset, number in zip(SYNSETS, random.permutation(1200)[:1000] + 1, strict=True):
        path = tmp_path / "val" / synset / f"ILSVRC2012_val_{number:08d}.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
        files[int(number)] = path
    return files


def data(images: dict[int, Path]) -> Data:
    return open_data(next(iter(images.values())).parents[2])


def test_real_accuracy_equals_a_plain_loop(model: Model, images: dict[int, Path], tmp_path: Path):
    random = np.random.default_rng(1)
    correct = scored = 0
    labels: list[list[int]] = [[] for _ in range(1200)]
    pixels = torch.stack([torch.from_numpy(np.array(Image.open(path))) for path in images.values()])
    with torch.no_grad():
        predictions = model(pixels.permute(0, 3, 1, 2) / 127.5 - 1).argmax(1).tolist()
    for number, prediction in zip(images, predictions, strict=True):
        classes = random.integers(0, 1000, random.integers(0, 3)).tolist() + [prediction] * int(random.random() < 0.4)
        labels[number - 1] = classes
        if classes:
            scored += 1
            correct += prediction in classes
    (tmp_path / "real.json").write_text(json.dumps(labels))
    evaluation = evaluate(model, data(images), real=tmp_path / "real.json")
    assert evaluation.images == 1000 > scored
    assert evaluation.real.value == correct / scored
    assert evaluation.real.low < evaluation.real.value < evaluation.real.high


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not JSON", "is not JSON"),
        ("{}", "is not ReaL's file"),
        ("[[1000]]", "is not ReaL's file"),
        ("[[1], [2]]", "ReaL's file has no labels for"),
        (json.dumps([[]] * 1200), "has a ReaL label"),
    ],
)
def test_a_file_without_real_labels_is_refused(
    content: str, message: str, model: Model, images: dict[int, Path], tmp_path: Path
):
    (tmp_path / "real.json").write_text(content)
    with pytest.raises(DataError, match=message):
        evaluate(model, data(images), real=tmp_path / "real.json")


def test_images_without_numbers_have_no_real_labels(model: Model, images: dict[int, Path], tmp_path: Path):
    for path in images.values():
        path.rename(path.with_name("image.png"))
    (tmp_path / "real.json").write_text(json.dumps([[1]] * 1200))
    with pytest.raises(DataError, match="ILSVRC2012_val_00000001"):
        evaluate(model, data(images), real=tmp_path / "real.json")


def test_classes_of_another_order_have_no_real_labels(tmp_path: Path):
    (tmp_path / "real.json").write_text("[[1]]")
    with pytest.raises(ConfigError, match="ImageNet's 1000 classes"):
        evaluate(small_model(), open_data("fashion"), real=tmp_path / "real.json")
