"""ImageNet-ReaL on a made-up validation set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.evaluate.small import small_model
from tests.model.kinds import randomise
from vitkit.data.sources.base import Data, DataError
from vitkit.data.sources.open import open_data
from vitkit.errors import ConfigError
from vitkit.evaluate.classify import evaluate
from vitkit.model.build import Model

SYNSETS = [f"n{number:08d}" for number in range(1000)]


@pytest.fixture
def model() -> Model:
    return randomise(vitkit.create("mu/8", classes=1000, image=8)).eval()


@pytest.fixture
def pictures(tmp_path: Path) -> dict[int, Path]:
    """number → file; one in each synset's folder, numbers and classes unrelated."""
    random = np.random.default_rng(0)
    files = {}
    for synset, number in zip(SYNSETS, random.permutation(1200)[:1000] + 1, strict=True):
        path = tmp_path / "val" / synset / f"ILSVRC2012_val_{number:08d}.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
        files[int(number)] = path
    return files


def data(pictures: dict[int, Path]) -> Data:
    return open_data(next(iter(pictures.values())).parents[2])


def test_real_accuracy_equals_a_plain_loop(model: Model, pictures: dict[int, Path], tmp_path: Path):
    random = np.random.default_rng(1)
    right = counted = 0
    labels: list[list[int]] = [[] for _ in range(1200)]
    pixels = torch.stack([torch.from_numpy(np.array(Image.open(path))) for path in pictures.values()])
    with torch.no_grad():
        answers = model(pixels.permute(0, 3, 1, 2) / 127.5 - 1).argmax(1).tolist()
    for number, answer in zip(pictures, answers, strict=True):
        seen = random.integers(0, 1000, random.integers(0, 3)).tolist() + [answer] * int(random.random() < 0.4)
        labels[number - 1] = seen
        if seen:
            counted += 1
            right += answer in seen
    (tmp_path / "real.json").write_text(json.dumps(labels))
    evaluation = evaluate(model, data(pictures), real=tmp_path / "real.json")
    assert evaluation.pictures == 1000 > counted
    assert evaluation.real.value == right / counted
    assert evaluation.real.low < evaluation.real.value < evaluation.real.high


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not JSON", "is not JSON"),
        ("{}", "is not ReaL's file"),
        ("[[1000]]", "is not ReaL's file"),
        ("[[1], [2]]", "has a number that ReaL's file does not have"),
        (json.dumps([[]] * 1200), "has a label of ReaL's"),
    ],
)
def test_a_file_that_is_not_reals_is_refused(
    content: str, message: str, model: Model, pictures: dict[int, Path], tmp_path: Path
):
    (tmp_path / "real.json").write_text(content)
    with pytest.raises(DataError, match=message):
        evaluate(model, data(pictures), real=tmp_path / "real.json")


def test_pictures_without_numbers_have_no_real_labels(model: Model, pictures: dict[int, Path], tmp_path: Path):
    for path in pictures.values():
        path.rename(path.with_name("picture.png"))
    (tmp_path / "real.json").write_text(json.dumps([[1]] * 1200))
    with pytest.raises(DataError, match="ILSVRC2012_val_00000001"):
        evaluate(model, data(pictures), real=tmp_path / "real.json")


def test_classes_of_another_order_have_no_real_labels(tmp_path: Path):
    (tmp_path / "real.json").write_text("[[1]]")
    with pytest.raises(ConfigError, match="ImageNet's 1000 classes"):
        evaluate(small_model(), open_data("fashion"), real=tmp_path / "real.json")
