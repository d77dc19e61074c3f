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
from vitkit.cli.main import main
from vitkit.data.sources.dataset import Data, DataError
from vitkit.data.sources.open import open_data
from vitkit.errors import ConfigError
from vitkit.evaluate.classify import evaluate
from vitkit.evaluate.evaluation import Evaluation
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


# Images without labels of their own


def numbered(folder: Path, numbers: list[int]) -> dict[int, Path]:
    random = np.random.default_rng(2)
    folder.mkdir(parents=True)
    files = {number: folder / f"ILSVRC2012_val_{number:08d}.JPEG" for number in numbers}
    for path in files.values():
        Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path, format="PNG")
    return files


@pytest.mark.parametrize("folder", ["flat", "flat/val", "flat/ILSVRC2012_img_val"])
def test_a_flat_folder_is_scored_from_real_json_alone(
    folder: str, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    files = numbered(tmp_path / folder, [1, 3, 4, 7, 9])
    (tmp_path / folder / "readme.png").write_bytes(files[1].read_bytes())
    vitkit.save(model, tmp_path / "run")
    predictions = {}
    for number, path in files.items():
        pixels = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)[None] / 127.5 - 1
        with torch.no_grad():
            predictions[number] = int(model(pixels).argmax())
    labels: list[list[int]] = [[] for _ in range(9)]
    labels[0], labels[2] = [predictions[1], 5], [(predictions[3] + 1) % 1000]
    labels[3], labels[6] = [predictions[4]], [1000 - 1 - predictions[7] // 2 * 2 % 1000]
    correct = sum(predictions[number] in labels[number - 1] for number in (1, 3, 4, 7))
    (tmp_path / "real.json").write_text(json.dumps(labels))
    arguments = ["evaluate", str(tmp_path / "run"), str(tmp_path / "flat"), "--real", str(tmp_path / "real.json")]
    main([*arguments, "--device", "cpu", "--workers", "0", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["images"] == 4  # number 9 has no label, and the readme no number
    assert result["unlabelled"] == 2
    assert result["real"]["value"] == correct / 4
    assert len(result["classes"]) == 1000
    assert result["top1"] is None
    assert result["loss"] is None
    assert Evaluation.from_json(json.dumps(result)).headline.value == correct / 4
    main([*arguments, "--device", "cpu", "--workers", "0"])
    text = capsys.readouterr().out
    assert "ReaL" in text
    assert "2 images without a ReaL label" in text
    assert "top-1" not in text


def test_a_flat_folder_without_real_json_is_still_an_error(model: Model, tmp_path: Path):
    numbered(tmp_path / "flat", [1])
    with pytest.raises(DataError, match="has no labels to score against"):
        evaluate(model, open_data(tmp_path / "flat"))


def test_a_flat_folder_of_other_images_has_no_real_labels(model: Model, tmp_path: Path):
    files = numbered(tmp_path / "flat", [1])
    files[1].rename(tmp_path / "flat" / "holiday.png")
    (tmp_path / "real.json").write_text("[[1]]")
    with pytest.raises(DataError, match="ILSVRC2012_val_00000001"):
        evaluate(model, open_data(tmp_path / "flat"), real=tmp_path / "real.json")
